//! A process that makes ids and records them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::time::Duration;

use lockapi::ErrorKind;
use lockapi::blocking::Backend;
use lockapi::id::Terms;

use crate::Problem;

pub(crate) fn run(arguments: &[OsString]) -> Result<(), Problem> {
    let [library, url, file, count] = arguments else {
        return Err("a library, a URL, a file and a count".into());
    };
    let url = url.to_str().ok_or("a URL")?;
    let count: u64 = count.to_str().ok_or("a count")?.parse()?;
    // It ends with the process that started it.
    std::thread::spawn(|| {
        // Nothing is sent: either end of the input is that end.
        let _end = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let backend = match library.to_str() {
        Some("sqlx") => Backend::connect(backend_sqlx::connect_url(url)),
        Some("diesel") => Backend::connect(backend_diesel::connect_url(url)),
        _ => Backend::connect(backend_sync::connect_url(url)),
    }?;
    let terms = Terms::default().reserve(Duration::from_millis(300));
    let ids = backend.id_gen("audit", terms)?;
    let mut file = BufWriter::new(File::create(file)?);
    let mut made = 0;
    while made < count {
        let part = fastrand::u64(1..2000).min(count - made);
        if fastrand::bool() {
            match ids.batch(part) {
                Ok(batch) => {
                    for id in batch {
                        file.write_all(&i64::from(id).to_le_bytes())?;
                    }
                    made += part;
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error.into()),
            }
        } else {
            for _ in 0..part {
                match ids.next() {
                    Ok(id) => {
                        file.write_all(&i64::from(id).to_le_bytes())?;
                        made += 1;
                    }
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        file.flush()?;
    }
    Ok(())
}

/// A process that was stopped may find its connection given up.
fn is_passing(error: &lockapi::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Indeterminate
    )
}
