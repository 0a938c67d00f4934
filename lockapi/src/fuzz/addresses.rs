//! Networks of a program's configuration, and what clients and proxies write into `X-Forwarded-For`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderValue, Request};
use lockapi_fuzz::{bytes_like, text_like};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq};

use super::{check, is_refused};
use crate::tower::{Head, Network, peer};

const NETWORKS: [&str; 17] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.0.0.0/08",
    "10.0.0.0/+8",
    "10.0.0.0/",
    "10.0.0.1/31",
    "192.0.2.7",
    "192.0.2.7/32",
    "192.0.2.7/33",
    "::/0",
    "fd00::/8",
    "::1/128",
    "::1/129",
    "::ffff:192.0.2.7",
    "::ffff:10.0.0.0/104",
    "::ffff:0:0/96",
    "::ffff:0:0/95",
];

/// The bits that an address has as IPv6.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// An address with its first bits, by comparing one after the other.
fn shares(one: u128, other: u128, prefix: u32) -> bool {
    (0..prefix).all(|at| (one >> (127 - at)) & 1 == (other >> (127 - at)) & 1)
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).into()),
        (0..4_u32, 9..11_u32).prop_map(|(low, high)| Ipv4Addr::from_bits(high << 24 | low).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits).into()),
        (0..4_u128, 0..4_u128)
            .prop_map(|(low, high)| Ipv6Addr::from_bits(high << 120 | low).into()),
        any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).to_ipv6_mapped().into()),
    ]
}

#[test]
fn networks_contain_what_has_their_prefix() {
    let places = |text: &str| {
        [
            "10.0.0.1",
            "192.0.2.7",
            "::ffff:10.0.0.1",
            "::ffff:192.0.2.7",
            "fd00::1",
            "::1",
        ]
        .map(|address| (text.to_owned(), address.parse().expect("an address")))
    };
    let known = NETWORKS.into_iter().flat_map(places);
    let own = (address(), 0..130_u32).prop_map(|(address, prefix)| format!("{address}/{prefix}"));
    let texts = prop_oneof![3 => text_like(&NETWORKS), 1 => own];
    check(known, &(texts, address()), |(text, address)| {
        let network = text.parse::<Network>();
        let (begin, prefix) = text.split_once('/').unwrap_or((&text, ""));
        let begin = begin.parse::<IpAddr>().ok();
        let most = begin.map_or(0, |it| if it.is_ipv4() { 32 } else { 128 });
        let whole = !text.contains('/');
        let prefix = (0..=most).find(|it| (whole && *it == most) || it.to_string() == prefix);
        let (Some(begin), Some(prefix)) = (begin, prefix) else {
            prop_assert!(is_refused(&network));
            return Ok(());
        };
        let prefix = prefix + 128 - most;
        if bits(begin).trailing_zeros() < 128 - prefix {
            prop_assert!(is_refused(&network));
            return Ok(());
        }
        // Addresses of IPv4 are in no larger network of IPv6.
        let apart = address.to_canonical().is_ipv4() && prefix < 96;
        let contains = !apart && shares(bits(begin), bits(address), prefix);
        prop_assert_eq!(network?.contains(address), contains);
        Ok(())
    });
}

/// The address of a part of the field.
fn read(part: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(part).ok()?.trim();
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    let (address, port) = if let Some(text) = text.strip_prefix('[') {
        let (address, rest) = text.split_once(']')?;
        if rest.is_empty() {
            return address.parse().ok();
        }
        // With a port it may have the number of an interface.
        let (address, scope) = address.split_once('%').unwrap_or((address, "0"));
        scope
            .parse::<u32>()
            .ok()
            .filter(|_| !scope.starts_with('+'))?;
        (IpAddr::V6(address.parse().ok()?), rest)
    } else {
        let at = text.find(':')?;
        (IpAddr::V4(text[..at].parse().ok()?), &text[at..])
    };
    let is_port =
        |port: &str| port.parse::<u16>().is_ok() && port.bytes().all(|it| it.is_ascii_digit());
    port.strip_prefix(':')
        .is_some_and(is_port)
        .then_some(address)
}

/// Without the proxies' own parts, which are the last ones, the address is that of the last part.
#[test]
fn the_address_is_the_last_that_a_proxy_wrote() {
    let lines = [
        &b"192.0.2.9"[..],
        b"198.51.100.1, 10.9.9.9",
        b"192.0.2.9:4711 ,10.0.0.2",
        b"[2001:db8::1]:80,[fd00::1]",
        b"::ffff:192.0.2.9,::ffff:10.0.0.1",
        b"unknown, \xff, _hidden",
        b" , ,",
        b"[10.0.0.1]",
        b"10.0.0.1:99999",
        b"fe80::1%eth0",
        b"",
    ];
    let known = lines.map(|line| {
        (
            Ipv4Addr::new(10, 0, 0, 1).into(),
            vec![line.to_vec(), lines[1].to_vec()],
        )
    });
    let line = bytes_like(lines.map(<[u8]>::to_vec).to_vec());
    check(known, &(address(), vec(line, 0..4)), |(from, lines)| {
        let proxies = ["10.0.0.0/8", "fd00::/8"];
        let key = peer(
            move |_| Some(from),
            proxies.map(|it| it.parse::<Network>().expect("a network")),
        );
        let mut request = Request::new(());
        let mut parts = Vec::new();
        for line in &lines {
            // Others do not come through.
            if let Ok(value) = HeaderValue::from_bytes(line) {
                request.headers_mut().append("x-forwarded-for", value);
                parts.extend(line.split(|byte| *byte == b','));
            }
        }
        let is_proxy = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(address) => address.octets()[0] == 10,
            IpAddr::V6(address) => address.octets()[0] == 0xfd,
        };
        let mut found = from;
        while let Some(part) = parts.pop().filter(|_| is_proxy(found)) {
            match read(part) {
                Some(address) => found = address,
                None => break,
            }
        }
        let named = match found.to_canonical() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => {
                format!("{}/64", Ipv6Addr::from_bits(address.to_bits() >> 64 << 64))
            }
        };
        prop_assert_eq!(key(&Head::of(&request)), Some(named));
        Ok(())
    });
}
