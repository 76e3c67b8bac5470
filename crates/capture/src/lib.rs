//! Capture files: reading pcap, pcapng and ERF, writing pcapng
