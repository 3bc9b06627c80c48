//! From the name of a network interface to an address of this machine.

use std::io;
use std::net::IpAddr;

/// An address of an interface.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) address: IpAddr,
}

/// The interfaces of this machine; one entry for each address.
pub(super) fn of_this_machine() -> io::Result<Vec<Interface>> {
    let found = if_addrs::get_if_addrs()?;
    Ok(found.into_iter().map(|each| Interface { address: each.ip(), name: each.name }).collect())
}

/// An address of this machine that others have a chance to reach: for a node that listens on all of them and was not
/// told by which name it is known.
pub(crate) fn own_address() -> Option<String> {
    let mut addresses: Vec<IpAddr> =
        of_this_machine().ok()?.into_iter().map(|each| each.address).filter(|a| !is_link_local(a)).collect();
    addresses.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    addresses.first().map(ToString::to_string)
}

/// The address of the interface `name`, or why there is none: what was expected and what was found.
///
/// IPv4 before IPv6, because that is what the other nodes of a job most likely speak; no link-local address, because
/// it means nothing to a node on another link.
pub(super) fn address_of(name: &str, all: &[Interface]) -> Result<IpAddr, String> {
    let mut addresses: Vec<IpAddr> =
        all.iter().filter(|each| each.name == name).map(|each| each.address).filter(|a| !is_link_local(a)).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.first().copied().ok_or_else(|| {
        let mut list: Vec<String> = all.iter().map(|each| format!("{} ({})", each.name, each.address)).collect();
        if list.is_empty() {
            list.push("none at all".to_owned());
        }
        format!("expected an interface with an address, of which there are {}; found {name:?}", list.join(", "))
    })
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}
