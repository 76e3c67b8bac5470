//! What the two processes of a measurement tell each other over TCP: lines of JSON.

use anyhow::{Context, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

/// One end.
pub struct Control {
    lines: BufReader<TcpStream>,
}

impl Control {
    pub fn new(stream: TcpStream) -> Result<Control> {
        stream.set_nodelay(true)?;
        Ok(Control { lines: BufReader::new(stream) })
    }

    pub fn send(&mut self, value: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(value)? + "\n";
        Ok(self.lines.get_mut().write_all(line.as_bytes())?)
    }

    /// `None` if the peer has ended.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        (!line.is_empty()).then(|| serde_json::from_str(&line)).transpose().context("the peer's line is not JSON")
    }

    /// Tells the peer a value, and returns that of the peer.
    pub fn exchange<T: Serialize + DeserializeOwned>(&mut self, value: T) -> Result<T> {
        self.send(&value)?;
        self.receive()?.context("the peer has ended")
    }

    /// The connection, when no line of the peer is awaited any more.
    pub fn stream(&self) -> &TcpStream {
        self.lines.get_ref()
    }
}
