//! A port that leads to the primary, as a proxy with health checks does.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::patroni;
use crate::Result;

const LOOK: Duration = Duration::from_millis(100);
/// How long a node may take to tell.
const ANSWER: Duration = Duration::from_millis(500);
/// How long a client waits for a primary.
const WAIT: Duration = Duration::from_secs(5);

/// Opens the port; `nodes` are the ports of the servers and of the interfaces beside them.
pub(super) async fn open(nodes: Vec<(u16, u16)>) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let (tell, primary) = watch::channel(None);
    for (server, rest) in nodes {
        // Each by itself: one that stands still does not answer.
        tokio::spawn(follow(server, rest, tell.clone()));
    }
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // A client that gets no server sees its connection end.
            tokio::spawn(serve(client, primary.clone()));
        }
    });
    Ok(port)
}

async fn follow(server: u16, rest: u16, tell: watch::Sender<Option<u16>>) {
    while !tell.is_closed() {
        let asked = timeout(ANSWER, patroni::is_primary(rest)).await;
        let leads = asked.unwrap_or(false);
        tell.send_if_modified(|known| {
            let next = match *known {
                None if leads => Some(server),
                Some(port) if port == server && !leads => None,
                other => other,
            };
            std::mem::replace(known, next) != next
        });
        sleep(LOOK).await;
    }
}

async fn serve(mut client: TcpStream, mut primary: watch::Receiver<Option<u16>>) -> io::Result<()> {
    let port = async {
        primary
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|known| *known)
    };
    let port = timeout(WAIT, port)
        .await?
        .ok_or(io::ErrorKind::NotConnected)?;
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
