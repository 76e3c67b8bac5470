//! A node: sockets that listen for connections, or request them.

use crate::allowed::{Allow, Allowed};
use crate::clock;
use crate::connection::Connection;
use crate::counters::Counters;
use crate::driver::Driven;
use crate::engine::Engine;
use crate::error::Error;
use crate::meter::Times;
use crate::options::Options;
use crate::process::Owner;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A set of sockets, and a thread. It ends when it and all its connections are dropped. A forked child of the process must
/// open its own.
#[derive(Clone)]
pub struct Node(Arc<Driven>);

impl Node {
    /// A node that listens at the port of the options, for connections of others.
    pub fn listen(options: Options) -> Result<Node, Error> {
        Node::start(options, true)
    }

    /// A node that requests connections; each to another node that listens.
    pub fn open(options: Options) -> Result<Node, Error> {
        Node::start(options, false)
    }

    fn start(options: Options, listens: bool) -> Result<Node, Error> {
        let owner = Owner::current();
        Ok(Node(Arc::new(Driven::start(Engine::open(options, listens)?, owner)?)))
    }

    /// The UDP port of the node.
    pub fn port(&self) -> u16 {
        self.0.shared.port
    }

    /// Waits for the next connection that a peer requests (MultiEdge's `connection_wait`); the peer may use what `allow`
    /// says. `Timeout` if none has come after `timeout`; `None`: waits without end.
    pub fn wait(&self, allow: &Allow, timeout: Option<Duration>) -> Result<Connection, Error> {
        let number = self.0.shared.wait(timeout, |engine| engine.take(allow))?;
        number.map(|number| Connection::new(self.0.clone(), number)).ok_or(Error::Timeout)
    }

    /// Requests a connection of a node that listens there (MultiEdge's `request_connection`); the peer may use what `allow`
    /// says. `Refused` if it does not want another; `NoAnswer` after `timeout`.
    pub fn request(&self, remote: SocketAddr, allow: &Allow, timeout: Duration) -> Result<Connection, Error> {
        let ifindex = if let SocketAddr::V6(remote) = remote { remote.scope_id() } else { 0 };
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let allowed = Allowed::new(allow)?;
        self.0.shared.with(|engine| engine.request(clock::now(), remote, ifindex))?;
        let requested = self.0.shared.wait(Some(timeout), |engine| engine.requested(remote));
        self.0.shared.with(|engine| match requested {
            Ok(Some(number)) => {
                engine.give(number, allowed);
                Ok(Connection::new(self.0.clone(), number))
            }
            Ok(None) => {
                engine.forget_request(remote);
                Err(Error::NoAnswer(remote))
            }
            Err(error) => {
                engine.forget_request(remote);
                Err(error)
            }
        })
    }

    /// What the node has counted.
    pub fn counters(&self) -> Result<Counters, Error> {
        self.0.shared.with(|engine| Ok(engine.counters))
    }

    /// Where CPU time went, if the options ask for that.
    pub fn times(&self) -> Result<Times, Error> {
        self.0.shared.with(|engine| Ok(engine.meter.times()))
    }
}
