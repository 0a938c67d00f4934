//! What is shown meanwhile.

use std::io::IsTerminal;
use std::time::Instant;

use crate::clock::seconds;
use crate::conduct::Promotion;
use crate::history::Primitive;

pub(crate) struct View {
    begun: Instant,
    colour: bool,
}

impl View {
    pub(crate) fn new() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            begun: Instant::now(),
            colour: std::io::stdout().is_terminal() && !plain,
        }
    }

    /// Something that happens now.
    pub(crate) fn event(&self, text: &str) {
        println!("{:7.1} s  {text}", self.begun.elapsed().as_secs_f64());
    }

    pub(crate) fn heading() {
        let kinds: String = Primitive::ALL
            .map(|one| format!("{:>8}", one.word()))
            .concat();
        println!("\n{:43}down{kinds}", "");
    }

    pub(crate) fn promotion(&self, promotion: &Promotion) {
        let Promotion {
            fault,
            from,
            to,
            timeline,
            took,
            first,
            idle,
            ..
        } = promotion;
        let kind = fault.name();
        let first = Primitive::ALL.into_iter().zip(first);
        let first: String = first
            .map(|(primitive, time)| match time {
                Some(time) => format!("{:>8.2}", seconds(*time)),
                None if *idle && primitive.is_of_jobs() => format!("{:>8}", "-"),
                None => format!("{:>8}", "never"),
            })
            .collect();
        let took = seconds(*took);
        let text =
            format!("           {kind:<12}{from} > {to}  timeline {timeline:<3}{took:>5.1}{first}");
        println!("{}", self.painted(36, &text));
    }

    pub(crate) fn verdict(&self, passed: bool, text: &str) {
        println!("{}", self.painted(if passed { 32 } else { 31 }, text));
    }

    fn painted(&self, colour: u8, text: &str) -> String {
        if self.colour {
            format!("\x1b[1;{colour}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
