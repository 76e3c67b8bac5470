//! Link rates: conversion of `ibv_rate` to and from multiples of 2.5 Gbit/s and Mbit/s, and the rate that a port
//! reports.

use std::ffi::c_int;

const RATE_MAX: c_int = 0;

/// A value of `ibv_rate`: its number, its multiple of 2.5 Gbit/s if the specification has one, and its rate in
/// Mbit/s.
struct Rate {
    number: c_int,
    mult: Option<c_int>,
    mbps: c_int,
}

const fn rate(number: c_int, mult: c_int, mbps: c_int) -> Rate {
    Rate { number, mult: if mult == 0 { None } else { Some(mult) }, mbps }
}

const RATES: [Rate; 23] = [
    rate(2, 1, 2_500),
    rate(3, 4, 10_000),
    rate(4, 12, 30_000),
    rate(5, 2, 5_000),
    rate(6, 8, 20_000),
    rate(7, 16, 40_000),
    rate(8, 24, 60_000),
    rate(9, 32, 80_000),
    rate(10, 48, 120_000),
    rate(11, 0, 14_062),
    rate(12, 0, 56_250),
    rate(13, 0, 112_500),
    rate(14, 0, 168_750),
    rate(15, 0, 25_781),
    rate(16, 0, 103_125),
    rate(17, 0, 206_250),
    rate(18, 0, 309_375),
    rate(19, 11, 28_125),
    rate(20, 20, 53_125),
    rate(21, 160, 425_000),
    rate(22, 240, 637_500),
    rate(23, 320, 850_000),
    rate(24, 480, 1_275_000),
];

/// -1 if there is no such multiple.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    find(|r| r.number == rate).and_then(|r| r.mult).unwrap_or(-1)
}

/// `IBV_RATE_MAX` if no rate has this multiple.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    find(|r| r.mult == Some(mult)).map_or(RATE_MAX, |r| r.number)
}

/// -1 for an unknown rate.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    find(|r| r.number == rate).map_or(-1, |r| r.mbps)
}

/// `IBV_RATE_MAX` if no rate has this number of Mbit/s.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    find(|r| r.mbps == mbps).map_or(RATE_MAX, |r| r.number)
}

/// Taken for the speed of an interface of unknown speed (loopback, veth, most virtual machines), Mbit/s: two streams of
/// 100 Gbit/s, which one stream between two processes of one host reaches. Programs choose protocols by it. UCX divides
/// it by the processes of a job on the host, and takes the rendezvous, which needs no copies, from 30 KiB on at
/// 100 Gbit/s for each, and from 250 KiB on or later at 40 or less.
const UNKNOWN_MBPS: u32 = 200_000;

/// The lowest `active_width` and `active_speed` of at least `mbps` Mbit/s. Of an interface of unknown speed (0):
/// 4x HDR, 200 Gbit/s.
pub fn link_speed(mbps: u32) -> (u8, u8) {
    const X1: u8 = 1;
    const X4: u8 = 2;
    const SDR: u8 = 1;
    const DDR: u8 = 2;
    const QDR: u8 = 4;
    const EDR: u8 = 32;
    const HDR: u8 = 64;
    const NDR: u8 = 128;
    match or_usual(mbps) {
        ..=2_500 => (X1, SDR),
        2_501..=5_000 => (X1, DDR),
        5_001..=10_000 => (X1, QDR),
        10_001..=20_000 => (X4, DDR),
        20_001..=25_000 => (X1, EDR),
        25_001..=40_000 => (X4, QDR),
        40_001..=50_000 => (X1, HDR),
        50_001..=100_000 => (X4, EDR),
        100_001..=200_000 => (X4, HDR),
        _ => (X4, NDR),
    }
}

/// The speed of an interface in units of 100 Mbit/s, at least one. For an interface of unknown speed (0) that of
/// [`link_speed`].
pub fn effective_speed(mbps: u32) -> u64 {
    u64::from(or_usual(mbps) / 100).max(1)
}

fn or_usual(mbps: u32) -> u32 {
    if mbps == 0 { UNKNOWN_MBPS } else { mbps }
}

fn find(which: impl Fn(&Rate) -> bool) -> Option<&'static Rate> {
    RATES.iter().find(|r| which(r))
}
