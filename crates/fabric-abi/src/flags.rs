//! Bits of capabilities, flags and modes.

/// Capability: messages.
pub const FI_MSG: u64 = 1 << 1;
/// Capability: READ and WRITE.
pub const FI_RMA: u64 = 1 << 2;
/// Capability: tagged messages.
pub const FI_TAGGED: u64 = 1 << 3;
/// Capability: atomic operations.
pub const FI_ATOMIC: u64 = 1 << 4;
/// The same as [`FI_ATOMIC`].
pub const FI_ATOMICS: u64 = FI_ATOMIC;
/// Capability: multicast.
pub const FI_MULTICAST: u64 = 1 << 5;
/// Capability: collective operations.
pub const FI_COLLECTIVE: u64 = 1 << 6;

/// Initiator of READs and of atomic operations that fetch.
pub const FI_READ: u64 = 1 << 8;
/// Initiator of WRITEs and of atomic operations.
pub const FI_WRITE: u64 = 1 << 9;
/// Receiver of messages.
pub const FI_RECV: u64 = 1 << 10;
/// Sender of messages.
pub const FI_SEND: u64 = 1 << 11;
/// The same as [`FI_SEND`].
pub const FI_TRANSMIT: u64 = FI_SEND;
/// Target of READs and of atomic operations that fetch.
pub const FI_REMOTE_READ: u64 = 1 << 12;
/// Target of WRITEs and of atomic operations.
pub const FI_REMOTE_WRITE: u64 = 1 << 13;

/// One receive buffer takes several messages; of a completion: the buffer is released.
pub const FI_MULTI_RECV: u64 = 1 << 16;
/// The operation or the completion has immediate data.
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
/// Another operation follows at once.
pub const FI_MORE: u64 = 1 << 18;
/// Looks for a message without receiving it.
pub const FI_PEEK: u64 = 1 << 19;
/// A counter or an event starts the operation.
pub const FI_TRIGGER: u64 = 1 << 20;
/// The operation waits for all earlier operations to the same peer.
pub const FI_FENCE: u64 = 1 << 21;
/// The operation is urgent.
pub const FI_PRIORITY: u64 = 1 << 22;

/// The operation makes a completion.
pub const FI_COMPLETION: u64 = 1 << 24;
/// The same as [`FI_COMPLETION`]; the bit also says that an address vector reports insertions by events.
pub const FI_EVENT: u64 = FI_COMPLETION;
/// The buffer is free for reuse when the call returns.
pub const FI_INJECT: u64 = 1 << 25;
/// Completion when the buffer is free for reuse.
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
/// Completion when the operation no longer depends on the local host.
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
/// Completion when the data is in the peer's memory.
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
/// `signaling_vector` is set.
pub const FI_AFFINITY: u64 = 1 << 29;
/// Completion when the data is in the peer's persistent memory.
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
/// Completion when the peer has matched the message with a receive.
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;

/// A transfer that another provider handles; also a mode bit.
pub const FI_PEER_TRANSFER: u64 = 1 << 36;
/// The program gives the addresses that completions report.
pub const FI_AV_USER_ID: u64 = 1 << 41;
/// The object is shared between providers.
pub const FI_PEER: u64 = 1 << 43;
/// Capability: an accelerator starts operations.
pub const FI_XPU_TRIGGER: u64 = 1 << 44;
/// Registration: device memory that the host allocated.
pub const FI_HMEM_HOST_ALLOC: u64 = 1 << 45;
/// Registration: device memory that the host cannot access.
pub const FI_HMEM_DEVICE_ONLY: u64 = 1 << 46;
/// Capability: device memory.
pub const FI_HMEM: u64 = 1 << 47;
/// Capability: messages of a length that the receiver does not know.
pub const FI_VARIABLE_MSG: u64 = 1 << 48;
/// Capability: RMA to persistent memory.
pub const FI_RMA_PMEM: u64 = 1 << 49;
/// Capability: a completion with an error has the raw address of an unknown source.
pub const FI_SOURCE_ERR: u64 = 1 << 50;
/// Capability: peers on this host.
pub const FI_LOCAL_COMM: u64 = 1 << 51;
/// Capability: peers on other hosts.
pub const FI_REMOTE_COMM: u64 = 1 << 52;
/// Capability: processes share an address vector.
pub const FI_SHARED_AV: u64 = 1 << 53;
/// `fi_getinfo` lists the providers' names and versions only.
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
/// The node is a numeric address: no look-up of names.
pub const FI_NUMERICHOST: u64 = 1 << 55;
/// Capability: the target counts RMA; also of a memory region that a counter is bound to.
pub const FI_RMA_EVENT: u64 = 1 << 56;
/// `fi_getinfo`: node and service are this side's. Capability: completions report the source.
pub const FI_SOURCE: u64 = 1 << 57;
/// Capability: senders name a receive context of the peer.
pub const FI_NAMED_RX_CTX: u64 = 1 << 58;
/// Capability: receives from one source.
pub const FI_DIRECTED_RECV: u64 = 1 << 59;

/// Of a receive: takes the message that a peek with this flag reserved.
pub const FI_CLAIM: u64 = 1 << 59;
/// Of a receive: drops the message.
pub const FI_DISCARD: u64 = 1 << 58;
/// Binding of a CQ: only operations with [`FI_COMPLETION`] make completions.
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
/// Binding of an EQ to a domain: registrations are asynchronous.
pub const FI_REG_MR: u64 = 1 << 59;
/// The atomic operation fetches.
pub const FI_FETCH_ATOMIC: u64 = 1 << 58;
/// The atomic operation compares.
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;

/// Address vector: the same addresses have the same indices in all processes.
pub const FI_SYMMETRIC: u64 = 1 << 59;
/// Insertion: reports the error of each address by the call's context.
pub const FI_SYNC_ERR: u64 = 1 << 58;
/// Set of addresses: all of the address vector.
pub const FI_UNIVERSE: u64 = 1 << 57;
/// Set of addresses that barriers use.
pub const FI_BARRIER_SET: u64 = 1 << 40;
/// Set of addresses that broadcasts use.
pub const FI_BROADCAST_SET: u64 = 1 << 41;
/// Set of addresses that all-to-all operations use.
pub const FI_ALLTOALL_SET: u64 = 1 << 42;
/// Set of addresses that all-reduce operations use.
pub const FI_ALLREDUCE_SET: u64 = 1 << 43;
/// Set of addresses that all-gather operations use.
pub const FI_ALLGATHER_SET: u64 = 1 << 44;
/// Set of addresses that reduce-scatter operations use.
pub const FI_REDUCE_SCATTER_SET: u64 = 1 << 45;
/// Set of addresses that reduce operations use.
pub const FI_REDUCE_SET: u64 = 1 << 46;
/// Set of addresses that scatter operations use.
pub const FI_SCATTER_SET: u64 = 1 << 47;
/// Set of addresses that gather operations use.
pub const FI_GATHER_SET: u64 = 1 << 48;

/// Mode: the context of each operation is an `fi_context`, which the provider uses.
pub const FI_CONTEXT: u64 = 1 << 59;
/// Mode: the program leaves room for the provider's header before each message.
pub const FI_MSG_PREFIX: u64 = 1 << 58;
/// Mode: lists of buffers stay valid until the completion.
pub const FI_ASYNC_IOV: u64 = 1 << 57;
/// Mode: immediate data takes a receive buffer.
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
/// Mode: the program registers local buffers (before version 1.5; then `FI_MR_LOCAL`).
pub const FI_LOCAL_MR: u64 = 1 << 55;
/// Mode: a completion of an incoming transfer has its flags only.
pub const FI_NOTIFY_FLAGS_ONLY: u64 = 1 << 54;
/// Mode: endpoints with different kinds of completions share no CQ.
pub const FI_RESTRICTED_COMP: u64 = 1 << 53;
/// Mode: the context of each operation is an `fi_context2`, which the provider uses.
pub const FI_CONTEXT2: u64 = 1 << 52;
/// Mode: the provider's own buffers hold received messages until the program takes them.
pub const FI_BUFFERED_RECV: u64 = 1 << 51;

/// Order of messages (`msg_order`, `comp_order`): none.
pub const FI_ORDER_NONE: u64 = 0;
/// READ after READ.
pub const FI_ORDER_RAR: u64 = 1 << 0;
/// READ after WRITE.
pub const FI_ORDER_RAW: u64 = 1 << 1;
/// READ after SEND.
pub const FI_ORDER_RAS: u64 = 1 << 2;
/// WRITE after READ.
pub const FI_ORDER_WAR: u64 = 1 << 3;
/// WRITE after WRITE.
pub const FI_ORDER_WAW: u64 = 1 << 4;
/// WRITE after SEND.
pub const FI_ORDER_WAS: u64 = 1 << 5;
/// SEND after READ.
pub const FI_ORDER_SAR: u64 = 1 << 6;
/// SEND after WRITE.
pub const FI_ORDER_SAW: u64 = 1 << 7;
/// SEND after SEND.
pub const FI_ORDER_SAS: u64 = 1 << 8;
/// All of the above; of completions: in the order of the operations.
pub const FI_ORDER_STRICT: u64 = 0x1ff;
/// Of completions: the data is written in order too.
pub const FI_ORDER_DATA: u64 = 1 << 16;
/// READ after READ, RMA only.
pub const FI_ORDER_RMA_RAR: u64 = 1 << 32;
/// READ after WRITE, RMA only.
pub const FI_ORDER_RMA_RAW: u64 = 1 << 33;
/// WRITE after READ, RMA only.
pub const FI_ORDER_RMA_WAR: u64 = 1 << 34;
/// WRITE after WRITE, RMA only.
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;
/// READ after READ, atomic operations only.
pub const FI_ORDER_ATOMIC_RAR: u64 = 1 << 36;
/// READ after WRITE, atomic operations only.
pub const FI_ORDER_ATOMIC_RAW: u64 = 1 << 37;
/// WRITE after READ, atomic operations only.
pub const FI_ORDER_ATOMIC_WAR: u64 = 1 << 38;
/// WRITE after WRITE, atomic operations only.
pub const FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;
