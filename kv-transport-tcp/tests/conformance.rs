//! The van conformance suite over real sockets.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic like the test itself")]

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use kv_core::cluster::{NodeId, Role};
use kv_core::van::{Endpoint, Inbox, Van, VanError};
use kv_testkit::conformance::{Harness, run, run_some};
use kv_transport_tcp::{TcpConfig, TcpVan};

/// All there are: TCP has every capability.
const CHECKS: usize = 19;

struct Tcp {
    /// The address of a rank, with port 0.
    bind: fn(usize) -> String,
    large_part_bytes: u64,
}

const QUICK: u64 = 16 * 1024 * 1024;

impl Tcp {
    /// Every rank has a loopback address of its own. Outgoing connections come from another one, so that none of them
    /// takes the port of a dead node that is to be reincarnated.
    fn v4() -> Self {
        Self { bind: |rank| format!("127.0.0.{}:0", rank + 2), large_part_bytes: QUICK }
    }
}

async fn bind(bind: String) -> Result<(Arc<dyn Van>, Inbox), VanError> {
    let config = TcpConfig { bind, ..TcpConfig::new("conformance", NodeId::random().unwrap(), Role::Worker) };
    let (van, inbox) = TcpVan::bind(config).await?;
    Ok((Arc::new(van), inbox))
}

#[async_trait]
impl Harness for Tcp {
    async fn node(&self, rank: usize) -> (Arc<dyn Van>, Inbox) {
        bind((self.bind)(rank)).await.unwrap()
    }

    async fn reincarnate(&self, _rank: usize, endpoint: &Endpoint) -> Option<(Arc<dyn Van>, Inbox)> {
        let address = endpoint.0.strip_prefix("tcp://")?;
        loop {
            // The runtime has yet to drop the dead node's listening socket.
            if let Ok(node) = bind(address.to_owned()).await {
                return Some(node);
            }
            tokio::task::yield_now().await;
        }
    }

    fn public_address(&self, endpoint: &Endpoint) -> Option<SocketAddr> {
        endpoint.0.strip_prefix("tcp://")?.parse().ok()
    }

    fn large_part_bytes(&self) -> u64 {
        self.large_part_bytes
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_over_ipv4() {
    run(Tcp::v4()).await.assert_ok(CHECKS);
}

#[tokio::test]
async fn conforms_on_one_thread() {
    run(Tcp::v4()).await.assert_ok(CHECKS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_over_ipv6() {
    run(Tcp { bind: |_| "[::1]:0".to_owned(), ..Tcp::v4() }).await.assert_ok(CHECKS);
}

#[tokio::test]
async fn carries_a_part_of_256_mib() {
    let harness = Tcp { large_part_bytes: 256 * 1024 * 1024, ..Tcp::v4() };
    run_some(harness, |name| name == "v04_large_part").await.assert_ok(1);
}
