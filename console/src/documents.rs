//! What shells and `man` read, made of the arguments themselves.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::arguments::Arguments;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Print the completions of a shell
#[derive(Clone, Debug, Args)]
pub(crate) struct Completions {
    /// The shell to complete in
    shell: Shell,
}

/// Print a manual page, or write all of them
#[derive(Clone, Debug, Args)]
pub(crate) struct Manual {
    /// The page of a command, such as `exec` or `lock list`; the first page unless given
    #[arg(value_name = "COMMAND")]
    path: Vec<String>,

    /// Write the pages of all commands into this directory, such as /usr/local/share/man/man1
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "path")]
    directory: Option<PathBuf>,
}

/// What the first page says besides the arguments, in the words of `roff`.
const STATUSES: &str = include_str!("documents/statuses.roff");

impl Completions {
    pub(crate) fn run(&self, output: Output) -> Result<Exit> {
        let mut text = Vec::new();
        let mut command = Arguments::command();
        clap_complete::generate(self.shell, &mut command, "lockapi", &mut text);
        output.value(&String::from_utf8_lossy(&text), ToString::to_string)?;
        Ok(Exit::Success)
    }
}

impl Manual {
    pub(crate) fn run(&self, output: Output) -> Result<Exit> {
        let mut root = Arguments::command();
        root.build();
        if let Some(directory) = &self.directory {
            fs::create_dir_all(directory).map_err(|error| {
                let message = format!("{} cannot be created: {error}", directory.display());
                Failure::new(Exit::Failed, message)
                    .advise("Name a directory that this user may write to.")
            })?;
            let mut written = Vec::new();
            write_all(&root, "lockapi", directory, &mut written)?;
            // People are told of what went wrong only.
            output.value(&written, |_| String::new())?;
            return Ok(Exit::Success);
        }
        let mut command = &root;
        let mut name = String::from("lockapi");
        for part in &self.path {
            let found = visible(command).find(|under| under.get_name() == part);
            let Some(found) = found else {
                let known: Vec<_> = visible(command).map(Command::get_name).collect();
                return Err(Failure::usage(format!(
                    "`{name}` has no command {part:?}; allowed are {}",
                    known.join(", ")
                )));
            };
            command = found;
            name = format!("{name}-{part}");
        }
        let page = page(command, &name)?;
        output.value(&String::from_utf8_lossy(&page), ToString::to_string)?;
        Ok(Exit::Success)
    }
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    let all = command.get_subcommands();
    all.filter(|under| !under.is_hide_set() && under.get_name() != "help")
}

fn page(command: &Command, name: &str) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let named = command.clone().name(name.to_owned());
    let rendered = Man::new(named).render(&mut text);
    let rendered = rendered.and_then(|()| match name {
        "lockapi" | "lockapi-exec" => text.write_all(STATUSES.as_bytes()),
        _ => Ok(()),
    });
    rendered.map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("the page of {name} cannot be made: {error}"),
        )
    })?;
    Ok(text)
}

fn write_all(
    command: &Command,
    name: &str,
    directory: &Path,
    written: &mut Vec<String>,
) -> Result<()> {
    let path = directory.join(format!("{name}.1"));
    fs::write(&path, page(command, name)?).map_err(|error| {
        let message = format!("{} cannot be written: {error}", path.display());
        Failure::new(Exit::Failed, message)
    })?;
    written.push(path.display().to_string());
    for under in visible(command) {
        let name = format!("{name}-{}", under.get_name());
        write_all(under, &name, directory, written)?;
    }
    Ok(())
}
