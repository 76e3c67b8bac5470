//! One RDMA adapter in one process
