//! Sends a message by RDMA, and checks it: the server prints what it has received, and answers with its checksum.
//!
//!     message            the server
//!     message ADDRESS    the client
//!
//! The two sides exchange the address of their queue pairs by TCP, and everything else by a reliable connection (RC).
//! The C example speaks the same protocol.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid, GidEntry, GidType};
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::device::{DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::{DeviceContext, Mtu};
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, SetScatterGatherEntry,
    WorkRequestFlags,
};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TCP_PORT: u16 = 18700;
/// Of the message; its last eight bytes are the checksum of the others.
const SIZE: usize = 1 << 20;
/// Of the text that describes a queue pair.
const LINE: usize = 47;

/// The `wr_id` of the only receive.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

struct Adapter {
    qp: GenericQueuePair,
    cq: GenericCompletionQueue,
    mr: Arc<MemoryRegion>,
    /// The message to send, then room for a received one. Its memory is registered.
    buffer: Box<[u8]>,
    gid: GidEntry,
}

fn main() -> Result<()> {
    let server = std::env::args().nth(1);
    let mut adapter = Adapter::open()?;
    adapter.post_receive()?;
    let mut tcp = match &server {
        Some(address) => TcpStream::connect((address.as_str(), TCP_PORT))?,
        None => TcpListener::bind(("0.0.0.0", TCP_PORT))?.accept()?.0,
    };
    let mut other = [0; LINE];
    // The server is ready to receive before the client learns where to send.
    if server.is_some() {
        tcp.write_all(adapter.describe().as_bytes())?;
    }
    tcp.read_exact(&mut other)?;
    adapter.connect_to(std::str::from_utf8(&other)?)?;
    if server.is_none() {
        tcp.write_all(adapter.describe().as_bytes())?;
    }

    if server.is_some() { client(&mut adapter)? } else { serve(&mut adapter)? }

    // Both sides have their completions when the other side closes.
    tcp.shutdown(std::net::Shutdown::Write)?;
    tcp.read_to_end(&mut vec![])?;
    Ok(())
}

fn client(adapter: &mut Adapter) -> Result<()> {
    for (i, byte) in adapter.buffer[..SIZE].iter_mut().enumerate() {
        *byte = (i * 31 + i / 251) as u8;
    }
    let sum = checksum(&adapter.buffer[..SIZE - 8]);
    adapter.buffer[SIZE - 8..SIZE].copy_from_slice(&sum.to_ne_bytes());
    adapter.send(SIZE)?;
    let size = adapter.wait_for(2)?; // the send, and the answer's receive
    if adapter.buffer[SIZE..][..size] != sum.to_ne_bytes() {
        return Err("the server has received something else".into());
    }
    println!("sent {SIZE} bytes; the server has the same checksum, {sum:016x}");
    Ok(())
}

fn serve(adapter: &mut Adapter) -> Result<()> {
    let size = adapter.wait_for(1)?;
    let received = &adapter.buffer[SIZE..];
    let sum = checksum(&received[..SIZE - 8]);
    if size != SIZE || received[SIZE - 8..] != sum.to_ne_bytes() {
        return Err(format!("the message of {size} bytes is damaged").into());
    }
    println!("received {size} bytes with the checksum {sum:016x}");
    adapter.buffer[..8].copy_from_slice(&sum.to_ne_bytes());
    adapter.send(8)?;
    adapter.wait_for(1)?;
    Ok(())
}

/// FNV-1a: any change of the message changes it.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Adapter {
    fn open() -> Result<Adapter> {
        let list = DeviceList::new()?;
        let device = list.get(0).ok_or("no RDMA device (start this with `weir run -- …`)")?;
        println!("device {}", device.name());
        let context = device.open()?;
        let gid = choose_gid(&context)?;
        let pd = context.alloc_pd()?;
        let cq = GenericCompletionQueue::from(context.create_cq_builder().setup_cqe(4).build()?);
        let buffer = vec![0; 2 * SIZE].into_boxed_slice();
        // SAFETY: the buffer stays where it is, and is freed after the region.
        let mr = unsafe { pd.reg_mr(buffer.as_ptr() as usize, buffer.len(), AccessFlags::LocalWrite)? };
        let mut builder = pd.create_qp_builder();
        builder.setup_max_send_wr(1).setup_max_recv_wr(1).setup_send_cq(cq.clone()).setup_recv_cq(cq.clone());
        let mut qp = GenericQueuePair::from(builder.build()?);
        let mut init = QueuePairAttribute::new();
        init.setup_state(QueuePairState::Init).setup_pkey_index(0).setup_port(1);
        init.setup_access_flags(AccessFlags::LocalWrite);
        qp.modify(&init)?;
        Ok(Adapter { qp, cq, mr, buffer, gid })
    }

    /// The receive is posted before the other side can send.
    fn post_receive(&mut self) -> Result<()> {
        let mut guard = self.qp.start_post_recv();
        // SAFETY: the second half of the buffer is registered, and nothing reads it before the receive completes.
        unsafe { guard.construct_wr(RECEIVE).setup_sge(self.mr.lkey(), (self.mr.get_ptr() + SIZE) as u64, SIZE as u32) };
        Ok(guard.post()?)
    }

    /// A number of its own for the first packet would be better in a real program: packets of an old connection may
    /// come.
    fn describe(&self) -> String {
        let gid: String = self.gid.gid().raw.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:06x} {:06x} {gid}\n", self.qp.qp_number(), 0)
    }

    fn connect_to(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [qpn, psn, gid] = words[..] else { return Err("the other side's line has other words".into()) };
        let raw = u128::from_str_radix(gid, 16)?.to_be_bytes();
        let mut address = AddressHandleAttribute::new();
        address.setup_port(1).setup_grh_src_gid_index(self.gid.gid_index() as u8);
        address.setup_grh_dest_gid(&Gid { raw }).setup_grh_hop_limit(64);
        let mut rtr = QueuePairAttribute::new();
        rtr.setup_state(QueuePairState::ReadyToReceive).setup_path_mtu(Mtu::Mtu1024).setup_address_vector(&address);
        rtr.setup_dest_qp_num(u32::from_str_radix(qpn, 16)?).setup_rq_psn(u32::from_str_radix(psn, 16)?);
        rtr.setup_max_dest_read_atomic(1).setup_min_rnr_timer(12);
        self.qp.modify(&rtr)?;
        let mut rts = QueuePairAttribute::new();
        rts.setup_state(QueuePairState::ReadyToSend).setup_sq_psn(0).setup_timeout(14).setup_retry_cnt(7);
        rts.setup_rnr_retry(7).setup_max_read_atomic(1);
        Ok(self.qp.modify(&rts)?)
    }

    fn send(&mut self, size: usize) -> Result<()> {
        let mut guard = self.qp.start_post_send();
        let request = guard.construct_wr(SEND, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: the buffer is registered, and nothing writes to it before the send completes.
        unsafe { request.setup_sge(self.mr.lkey(), self.mr.get_ptr() as u64, size as u32) };
        Ok(guard.post()?)
    }

    /// Waits until so many work requests have completed; returns the bytes of the receive among them.
    fn wait_for(&self, completions: usize) -> Result<usize> {
        let (mut left, mut received) = (completions, 0);
        while left > 0 {
            let Ok(poller) = self.cq.start_poll() else { continue }; // the queue is empty
            for completion in poller {
                if completion.status() != WorkCompletionStatus::Success as u32 {
                    let status = WorkCompletionStatus::from(completion.status());
                    return Err(format!("completion: {status:?}").into());
                }
                if completion.wr_id() == RECEIVE {
                    received = completion.byte_len() as usize;
                }
                left -= 1;
            }
        }
        Ok(received)
    }
}

/// A GID of RoCEv2, if possible that of an IPv4 address.
fn choose_gid(context: &DeviceContext) -> Result<GidEntry> {
    let table = context.query_gid_table()?;
    let mut roce: Vec<GidEntry> = table.into_iter().filter(|gid| gid.gid_type() == GidType::RoceV2).collect();
    roce.sort_by_key(|gid| gid.gid().raw[..12] != [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    roce.into_iter().next().ok_or("no GID of RoCEv2".into())
}
