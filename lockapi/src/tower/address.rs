//! The address that a request came from, also through proxies of the program.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use http::{HeaderName, HeaderValue};

use super::Head;
use crate::error::{Error, ErrorKind, Result};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A host commonly has all addresses of a network of this size.
const IPV6_PREFIX: u8 = 64;

/// The addresses with a common prefix, such as `10.0.0.0/8`, `fd00::/8` or `192.0.2.7`.
///
/// ```
/// let inside: lockapi::tower::Network = "10.0.0.0/8".parse()?;
/// assert!(inside.contains("10.1.2.3".parse().unwrap()));
/// # Ok::<_, lockapi::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether the network contains an address. An IPv4 address that is written as IPv6 is the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.prefix) == self.address
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            let message = format!(
                "a network {text:?}; allowed are an address, or one with the length of its prefix, as in 10.0.0.0/8"
            );
            Error::new(ErrorKind::Invalid, "network", message)
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        // A sign or zeros before it are no part of it.
        let read = |text: &str| text.parse().ok().filter(|it: &u8| it.to_string() == text);
        let prefix = prefix.map_or(Some(bits), read).ok_or_else(invalid)?;
        if prefix > bits || masked(address, prefix) != address {
            return Err(invalid());
        }
        // As addresses are compared: IPv4 that is written as IPv6 has 96 bits before it.
        let canonical = address.to_canonical();
        let prefix = if canonical == address {
            prefix
        } else {
            prefix - 96
        };
        Ok(Self {
            address: canonical,
            prefix,
        })
    }
}

/// The address with nothing after the prefix.
fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

/// The key of a [`Rule`](super::Rule): the address that a request came from. `address` returns the peer
/// address of the connection, such as the `ConnectInfo` of axum in the extensions.
///
/// If that is one of `proxies`, `X-Forwarded-For` is read from its end, as long as the entries are addresses
/// of `proxies`; the first other entry is the address. So a client cannot choose its address by sending the
/// field. Addresses of IPv6 count by their first 64 bits, because a host commonly has all the others.
///
/// ```
/// use std::net::SocketAddr;
/// use lockapi::tower::{Network, Rule, peer};
///
/// let proxies = ["10.0.0.0/8".parse::<Network>()?];
/// let rule = Rule::new("address", peer(|head| Some(head.extensions.get::<SocketAddr>()?.ip()), proxies));
/// # Ok::<_, lockapi::Error>(())
/// ```
pub fn peer(
    address: impl Fn(&Head<'_>) -> Option<IpAddr> + Send + Sync + 'static,
    proxies: impl IntoIterator<Item = Network>,
) -> impl Fn(&Head<'_>) -> Option<String> + Send + Sync + 'static {
    let proxies: Vec<_> = proxies.into_iter().collect();
    move |head| Some(named(client(address(head)?, head, &proxies)))
}

/// Who has sent the request to the first of the proxies that can be trusted.
fn client(peer: IpAddr, head: &Head<'_>, proxies: &[Network]) -> IpAddr {
    let is_proxy = |address| proxies.iter().any(|proxy| proxy.contains(address));
    let fields = head.headers.get_all(FORWARDED_FOR).into_iter();
    let fields: Vec<_> = fields.map(HeaderValue::as_bytes).collect();
    // Part by part: what a client sent before them, whatever bytes, does not hide what proxies wrote.
    let parts = fields.iter().rev();
    let mut sent_from = parts.flat_map(|field| field.rsplit(|byte| *byte == b','));
    let mut at = peer.to_canonical();
    while is_proxy(at) {
        let Some(before) = sent_from.next().and_then(parsed) else {
            break;
        };
        at = before;
    }
    at
}

/// An address, which some proxies write with a port.
fn parsed(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let bare = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse::<IpAddr>();
    let address = address.or_else(|_| text.parse::<SocketAddr>().map(|it| it.ip()));
    Some(address.ok()?.to_canonical())
}

fn named(address: IpAddr) -> String {
    if address.is_ipv4() {
        return address.to_string();
    }
    format!("{}/{IPV6_PREFIX}", masked(address, IPV6_PREFIX))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Request};

    use super::*;

    fn key(peer: &str, forwarded: &[&str]) -> String {
        let proxies: Vec<Network> = ["10.0.0.0/8", "fd00::1"]
            .map(|it| it.parse().unwrap())
            .into();
        let mut request = Request::new(());
        let headers: &mut HeaderMap = request.headers_mut();
        for value in forwarded {
            headers.append(FORWARDED_FOR, value.parse().unwrap());
        }
        let peer: IpAddr = peer.parse().unwrap();
        super::peer(move |_| Some(peer), proxies)(&Head::of(&request)).unwrap()
    }

    #[test]
    fn only_what_proxies_wrote_counts() {
        // Nobody between: the field is what somebody claims.
        assert_eq!(key("192.0.2.1", &["198.51.100.1"]), "192.0.2.1");
        assert_eq!(key("10.0.0.1", &["192.0.2.9"]), "192.0.2.9");
        // The client has sent the first two, each proxy added what it saw.
        let chain = ["198.51.100.1, 10.9.9.9", "192.0.2.9,10.0.0.2"];
        assert_eq!(key("10.0.0.1", &chain), "192.0.2.9");
        assert_eq!(key("fd00::1", &["192.0.2.9:4711"]), "192.0.2.9");
        assert_eq!(key("10.0.0.1", &["[2001:db8::1]:80"]), "2001:db8::/64");
    }

    #[test]
    fn what_cannot_be_read_is_the_proxy_s_own() {
        assert_eq!(key("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(key("10.0.0.1", &["unknown"]), "10.0.0.1");
        assert_eq!(key("10.0.0.1", &["192.0.2.9, , "]), "10.0.0.1");
        assert_eq!(key("10.0.0.1", &["10.0.0.2"]), "10.0.0.2");
    }

    #[test]
    fn addresses_have_one_form() {
        assert_eq!(key("::ffff:192.0.2.1", &[]), "192.0.2.1");
        assert_eq!(key("::ffff:10.0.0.1", &["::ffff:192.0.2.9"]), "192.0.2.9");
        assert_eq!(key("2001:db8:0:1:2:3:4:5", &[]), "2001:db8:0:1::/64");
    }

    #[test]
    fn networks_are_written_with_their_prefix() {
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("255.1.2.3".parse().unwrap()));
        assert!(!all.contains("::1".parse().unwrap()));
        for mapped in ["::ffff:10.0.0.0/104", "::ffff:10.1.2.3"] {
            let mapped: Network = mapped.parse().unwrap();
            assert!(mapped.contains("10.1.2.3".parse().unwrap()), "{mapped:?}");
            assert!(!mapped.contains("11.1.2.3".parse().unwrap()), "{mapped:?}");
        }
        for wrong in [
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "::/129",
            "10.0.0.0/x",
            "host",
        ] {
            let error = wrong.parse::<Network>().unwrap_err();
            assert!(error.to_string().contains("10.0.0.0/8"), "{error}");
        }
    }
}
