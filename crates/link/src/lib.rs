//! Carriers of packets: UDP sockets, injected faults, capture
