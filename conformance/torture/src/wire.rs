//! A network of its own for one program: a namespace, with one cable to the rest of the machine. Where the cable is
//! pulled out, packets of both sides vanish, and no system tells anybody.

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::Result;
use crate::guard::Guard;

/// The cable and the namespace, which are removed with this value, or when this process has ended.
#[derive(Debug)]
pub(crate) struct Wire {
    namespace: String,
    /// The end of the cable on this side.
    end: String,
    address: Ipv4Addr,
    _guard: Guard,
}

fn ip(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    let output = command.args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("ip {}: {said}", arguments.join(" ")).into())
}

impl Wire {
    /// Lays a cable, with addresses that no other run of this machine draws.
    pub(crate) fn lay() -> Result<Self> {
        if !geteuid().is_root() {
            return Err("it needs root, and network namespaces by `ip netns`".into());
        }
        let number = std::process::id();
        let [_, _, high, low] = (number << 2).to_be_bytes();
        let address = |last| Ipv4Addr::new(10, 213, high, low | last);
        let (namespace, end) = (format!("torture-{number}"), format!("tort{number}h"));
        let guard = Guard::new(
            "ip netns delete \"$1\"; ip link delete \"$2\"",
            &[&namespace, &end],
        )?;
        let wire = Self {
            namespace,
            end,
            address: address(1),
            _guard: guard,
        };
        let (name, end) = (wire.namespace.as_str(), wire.end.as_str());
        let other = format!("tort{number}p");
        ip(&["netns", "add", name])?;
        ip(&[
            "link", "add", end, "type", "veth", "peer", "name", &other, "netns", name,
        ])?;
        let here = format!("{}/30", address(1));
        ip(&["addr", "add", &here, "dev", end])?;
        ip(&["link", "set", end, "up"])?;
        let there = format!("{}/30", address(2));
        ip(&["-n", name, "addr", "add", &there, "dev", &other])?;
        ip(&["-n", name, "link", "set", &other, "up"])?;
        Ok(wire)
    }

    /// Where its program finds this side.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// What a program is started with in the namespace.
    pub(crate) fn entry(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.namespace]
    }

    pub(crate) fn pull_out(&self) -> Result<()> {
        ip(&["link", "set", &self.end, "down"])
    }

    pub(crate) fn plug_in(&self) -> Result<()> {
        ip(&["link", "set", &self.end, "up"])
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The cable goes with the namespace, and that with its last process.
        drop(ip(&["netns", "delete", &self.namespace]));
        drop(ip(&["link", "delete", &self.end]));
    }
}

/// How often the network of a process has sent something again because nobody had answered.
pub(crate) fn sent_again(pid: i32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/snmp"))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next(), lines.next());
    let names = names.ok_or("no names")?.split_whitespace();
    let mut columns = names.zip(values.ok_or("no values")?.split_whitespace());
    let found = columns.find(|(name, _)| *name == "RetransSegs");
    Ok(found.ok_or("nothing is counted")?.1.parse()?)
}
