//! The RDMA transport protocol: no clock, no socket, no thread
