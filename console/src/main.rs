//! `lockapi`: see the documentation of the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockapi_console::main()
}
