//! One process waits for a connection, another writes into its memory and reads that back: `edge PORT [HOST]`.

use std::net::ToSocketAddrs;
use std::time::Duration;
use weir_edge::{Access, Allow, Connection, DEFAULT_PORT, Error, Event, Node, OperationFlags, Options};

const SIZE: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(10);
static mut MEMORY: [u8; SIZE] = [0; SIZE];

/// Waits for the next notification.
fn notified(connection: &Connection) -> Result<u64, Error> {
    loop {
        if let Event::Notified { address, .. } = connection.wait_event(Some(PATIENCE))? {
            return Ok(address);
        }
    }
}

fn wait(connection: &Connection, port: u16) -> Result<(), Error> {
    // The peer gets the address of the memory that it may use.
    connection.tell((&raw const MEMORY).expose_provenance() as u64)?;
    notified(connection)?;
    // SAFETY: the peer has written, and does so no more.
    let text = unsafe { (&raw const MEMORY).read() };
    println!("port {port}: the peer has written {:?}", String::from_utf8_lossy(&text).trim_end_matches('\0'));
    // The peer ends the connection when it has read.
    while connection.wait_event(Some(PATIENCE)).is_ok() {}
    Ok(())
}

fn request(connection: &Connection) -> Result<(), Error> {
    let remote = notified(connection)?;
    let (mut text, mut copy) = ([0; SIZE], [0; SIZE]);
    text[..13].copy_from_slice(b"hello, memory");
    connection.write(remote, &text, OperationFlags::NOTIFY)?;
    connection.read(remote, &mut copy, OperationFlags::empty())?;
    println!("read back {:?}", String::from_utf8_lossy(&copy).trim_end_matches('\0'));
    let refused = connection.write(8, &text, OperationFlags::empty()).expect_err("the address is not allowed");
    println!("as it should be: {refused}");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().map_or(Ok(DEFAULT_PORT), |port| port.parse())?;
    let options = Options { port, ..Options::default() };
    if let Some(host) = arguments.next() {
        let remote = (host, port).to_socket_addrs()?.next().ok_or("the host has no address")?;
        return Ok(request(&Node::open(options)?.request(remote, &Allow::nothing(), PATIENCE)?)?);
    }
    // SAFETY: the memory is used through pointers only.
    let allow = unsafe { Allow::nothing().and((&raw const MEMORY).cast(), SIZE, Access::READ | Access::WRITE) };
    Ok(wait(&Node::listen(options)?.wait(&allow, Some(PATIENCE))?, port)?)
}
