//! Endpoints.
//!
//! | file | |
//! | --- | --- |
//! | `object` | an endpoint as an object of libfabric |
//! | `control` | opening, binding, enabling, closing |
//! | `options` | `fi_getopt`, `fi_setopt` |
//! | `message`, `tagged`, `remote`, `atomic` | what programs call |
//! | `engine` | the protocol and its port, which one thread drives at a time |
//! | `port` | what the protocol asks of the adapter; `slots`: bounce buffers; `links`: connections |
//! | `report` | how an operation's end reaches queues and counters |

mod atomic;
mod bindings;
mod call;
mod control;
mod engine;
mod links;
mod message;
mod numbered;
mod numbers;
mod object;
mod options;
mod port;
mod receive;
mod remote;
mod report;
mod slots;
mod tagged;

pub use control::open;
