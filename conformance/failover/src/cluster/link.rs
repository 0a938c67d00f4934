//! A connection between two machines, which can be cut.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::Result;

/// Passes on what is said on a port. While it is cut nothing arrives and nobody is told, as when
/// packets are lost; what is under way then arrives when it is mended.
pub(crate) struct Link {
    port: u16,
    open: Arc<watch::Sender<bool>>,
}

impl Link {
    pub(super) async fn to(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let link = Self {
            port: listener.local_addr()?.port(),
            open: Arc::new(watch::Sender::new(true)),
        };
        let open = Arc::downgrade(&link.open);
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Some(open) = open.upgrade() else {
                    return;
                };
                tokio::spawn(serve(client, server, open.subscribe()));
            }
        });
        Ok(link)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn cut(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn mend(&self) {
        self.open.send_replace(true);
    }
}

/// Returns when either side has ended: whoever is on the other side sees the end as well.
async fn serve(
    client: TcpStream,
    server: SocketAddr,
    mut open: watch::Receiver<bool>,
) -> io::Result<()> {
    passable(&mut open).await?;
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (asking, told) = client.into_split();
    let (answering, asked) = server.into_split();
    tokio::select! {
        ended = pass(asking, asked, open.clone()) => ended,
        ended = pass(answering, told, open) => ended,
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut open: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await;
        passable(&mut open).await?;
        match read? {
            0 => return Ok(()),
            length => to.write_all(&buffer[..length]).await?,
        }
    }
}

async fn passable(open: &mut watch::Receiver<bool>) -> io::Result<()> {
    let passable = open.wait_for(|open| *open).await;
    passable
        .map(drop)
        .map_err(|_| io::ErrorKind::ConnectionAborted.into())
}
