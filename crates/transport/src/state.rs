//! Transitions between QP states: which attributes each requires and allows (IBTA 11.2.5.2, table 91).
//!
//! The results are those of Linux's `ib_modify_qp_is_ok`. Each service adds its own rows and masks.

use crate::config::Class;
use crate::{AttrMask, DeviceAttributes, ModifyError, QpAttr, QpState};

/// One allowed transition.
struct Transition {
    class: Class,
    from: QpState,
    to: QpState,
    required: AttrMask,
    optional: AttrMask,
}

macro_rules! mask {
    ($($flag:ident)|*) => { AttrMask::from_bits_truncate(0 $(| AttrMask::$flag.bits())*) };
}

macro_rules! transitions {
    ($class:ident: $($from:ident => $to:ident, [$($req:ident)|*], [$($opt:ident)|*];)*) => {
        [$(Transition {
            class: Class::$class,
            from: QpState::$from,
            to: QpState::$to,
            required: mask!($($req)|*),
            optional: mask!($($opt)|*),
        }),*]
    };
}

/// All transitions except those to RESET and ERROR, which require and allow no attributes.
const RC: [Transition; 9] = transitions! { Rc:
    Reset => Init, [PKEY_INDEX | PORT | ACCESS_FLAGS], [];
    Init => Init, [], [PKEY_INDEX | PORT | ACCESS_FLAGS];
    Init => Rtr, [AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER],
        [ALT_PATH | ACCESS_FLAGS | PKEY_INDEX];
    Rtr => Rts, [TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC],
        [CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE];
    Rts => Rts, [], [CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER];
    Rts => Sqd, [], [EN_SQD_ASYNC_NOTIFY];
    Sqd => Rts, [], [CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE];
    Sqd => Sqd, [], [PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | ALT_PATH
        | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER | PATH_MIG_STATE];
    Sqe => Rts, [], [];
};

const UC: [Transition; 9] = transitions! { Uc:
    Reset => Init, [PKEY_INDEX | PORT | ACCESS_FLAGS], [];
    Init => Init, [], [PKEY_INDEX | PORT | ACCESS_FLAGS];
    Init => Rtr, [AV | PATH_MTU | DEST_QPN | RQ_PSN], [ALT_PATH | ACCESS_FLAGS | PKEY_INDEX];
    Rtr => Rts, [SQ_PSN], [CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE];
    Rts => Rts, [], [CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE];
    Rts => Sqd, [], [EN_SQD_ASYNC_NOTIFY];
    Sqd => Rts, [], [CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE];
    Sqd => Sqd, [], [AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE];
    Sqe => Rts, [], [CUR_STATE | ACCESS_FLAGS];
};

const UD: [Transition; 9] = transitions! { Ud:
    Reset => Init, [PKEY_INDEX | PORT | QKEY], [];
    Init => Init, [], [PKEY_INDEX | PORT | QKEY];
    Init => Rtr, [], [PKEY_INDEX | QKEY];
    Rtr => Rts, [SQ_PSN], [CUR_STATE | QKEY];
    Rts => Rts, [], [CUR_STATE | QKEY];
    Rts => Sqd, [], [EN_SQD_ASYNC_NOTIFY];
    Sqd => Rts, [], [CUR_STATE | QKEY];
    Sqd => Sqd, [], [PKEY_INDEX | QKEY];
    Sqe => Rts, [], [CUR_STATE | QKEY];
};

const XRC_INITIATOR: [Transition; 8] = transitions! { XrcInitiator:
    Reset => Init, [PKEY_INDEX | PORT | ACCESS_FLAGS], [];
    Init => Init, [], [PKEY_INDEX | PORT | ACCESS_FLAGS];
    Init => Rtr, [AV | PATH_MTU | DEST_QPN | RQ_PSN], [ALT_PATH | ACCESS_FLAGS | PKEY_INDEX];
    Rtr => Rts, [TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC],
        [CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE];
    Rts => Rts, [], [CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE];
    Rts => Sqd, [], [EN_SQD_ASYNC_NOTIFY];
    Sqd => Rts, [], [CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE];
    Sqd => Sqd, [], [PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | ALT_PATH | ACCESS_FLAGS
        | PKEY_INDEX | PATH_MIG_STATE];
};

const XRC_TARGET: [Transition; 8] = transitions! { XrcTarget:
    Reset => Init, [PKEY_INDEX | PORT | ACCESS_FLAGS], [];
    Init => Init, [], [PKEY_INDEX | PORT | ACCESS_FLAGS];
    Init => Rtr, [AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER],
        [ALT_PATH | ACCESS_FLAGS | PKEY_INDEX];
    Rtr => Rts, [TIMEOUT | SQ_PSN], [CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE];
    Rts => Rts, [], [CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER];
    Rts => Sqd, [], [EN_SQD_ASYNC_NOTIFY];
    Sqd => Rts, [], [CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE];
    Sqd => Sqd, [], [PORT | AV | TIMEOUT | MAX_DEST_RD_ATOMIC | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER
        | PATH_MIG_STATE];
};

const RAW: [Transition; 9] = transitions! { Raw:
    Reset => Init, [PORT], [];
    Init => Init, [], [PORT];
    Init => Rtr, [], [];
    Rtr => Rts, [], [CUR_STATE | RATE_LIMIT];
    Rts => Rts, [], [CUR_STATE | RATE_LIMIT];
    Rts => Sqd, [], [EN_SQD_ASYNC_NOTIFY];
    Sqd => Rts, [], [CUR_STATE];
    Sqd => Sqd, [], [];
    Sqe => Rts, [], [CUR_STATE];
};

/// All rows of the table.
fn rows() -> impl Iterator<Item = &'static Transition> {
    [&RC[..], &UC, &UD, &XRC_INITIATOR, &XRC_TARGET, &RAW].into_iter().flatten()
}

/// Removes from a mask the attributes of the direction that this end of an XRC connection lacks: applications set the
/// same attributes at both ends, and Linux removes these before its check (`modify_qp_mask`).
pub(crate) fn applicable_mask(class: Class, mask: AttrMask) -> AttrMask {
    match class {
        Class::XrcInitiator => mask - (AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER),
        Class::XrcTarget => mask - (AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY),
        _ => mask,
    }
}

/// Checks a modify against the table, and its values against their ranges and the limits of the adapter; returns the new
/// state.
pub(crate) fn check(
    class: Class,
    current: QpState,
    attr: &QpAttr,
    mask: AttrMask,
    device: &DeviceAttributes,
) -> Result<QpState, ModifyError> {
    use QpState::*;
    let mut from = current;
    if mask.contains(AttrMask::CUR_STATE) {
        from = attr.cur_qp_state;
        if !matches!(from, Rtr | Rts | Sqd | Sqe) || from != current {
            return Err(ModifyError::CurrentState(current));
        }
    }
    let to = if mask.contains(AttrMask::STATE) { attr.qp_state } else { from };
    let none = AttrMask::empty();
    let (required, optional) = match to {
        Reset => (none, none),
        Error if from != Reset => (none, none),
        _ => {
            let row = rows().find(|row| row.class == class && row.from == from && row.to == to);
            let row = row.ok_or(ModifyError::Transition { from, to })?;
            (row.required, row.optional)
        }
    };
    let missing = required - mask;
    if !missing.is_empty() {
        return Err(ModifyError::Missing(missing));
    }
    let excess = mask - (required | optional | AttrMask::STATE);
    if !excess.is_empty() {
        return Err(ModifyError::NotAllowed(excess));
    }
    check_values(attr, mask)?;
    check_limits(attr, mask, device)?;
    Ok(to)
}

/// `IBV_MIG_MIGRATED`: the state of a QP that has no alternate path.
const MIGRATED: u32 = 0;

fn check_values(attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
    // Linux refuses alternate paths on RoCE ports (`ib_modify_qp`). Without one there is nothing to arm (IBTA 17.2.8).
    let armed = mask.contains(AttrMask::PATH_MIG_STATE) && attr.path_mig_state != MIGRATED;
    let migration = if armed { AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE } else { AttrMask::ALT_PATH };
    if mask.intersects(migration) {
        return Err(ModifyError::Migration(mask & migration));
    }
    let rules = [
        (AttrMask::TIMEOUT, attr.timeout <= 31),
        (AttrMask::RETRY_CNT, attr.retry_cnt <= 7),
        (AttrMask::RNR_RETRY, attr.rnr_retry <= 7),
        (AttrMask::DEST_QPN, attr.dest_qp_num < 1 << 24),
        // The adapter has one port and one partition.
        (AttrMask::PORT, attr.port_num == 1),
        (AttrMask::PKEY_INDEX, attr.pkey_index == 0),
    ];
    match rules.into_iter().find(|(flag, valid)| mask.contains(*flag) && !valid) {
        Some((flag, _)) => Err(ModifyError::Value(flag)),
        None => Ok(()),
    }
}

/// More READs and atomics than the adapter has resources for are invalid (IBTA 11.2.5.2).
fn check_limits(attr: &QpAttr, mask: AttrMask, device: &DeviceAttributes) -> Result<(), ModifyError> {
    let limits = [
        (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic, device.max_qp_init_rd_atom),
        (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic, device.max_qp_rd_atom),
    ];
    match limits.into_iter().find(|(flag, value, limit)| mask.contains(*flag) && value > limit) {
        Some((flag, _, limit)) => Err(ModifyError::Limit(flag, limit)),
        None => Ok(()),
    }
}

/// Copies the fields that the mask names, except the state.
pub(crate) fn apply(to: &mut QpAttr, from: &QpAttr, mask: AttrMask) {
    macro_rules! take {
        ($($flag:ident: $($field:ident),+;)*) => {
            $(if mask.contains(AttrMask::$flag) { $(to.$field = from.$field;)+ })*
        };
    }
    take! {
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        ACCESS_FLAGS: access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: ah_attr;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
        MIN_RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        PATH_MIG_STATE: path_mig_state;
        DEST_QPN: dest_qp_num;
        RATE_LIMIT: rate_limit;
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, DeviceAttributes, rows};
    use crate::{AttrMask, ModifyError, QpAttr, QpState};

    const STATES: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Error];

    fn to(state: QpState) -> QpAttr {
        QpAttr { qp_state: state, ..QpAttr::default() }
    }

    /// For the ideal adapter.
    fn check(class: Class, from: QpState, attr: &QpAttr, mask: AttrMask) -> Result<QpState, ModifyError> {
        super::check(class, from, attr, mask, &DeviceAttributes::ideal())
    }

    #[test]
    fn each_required_attribute_is_required_and_no_other_allowed() {
        for row in rows() {
            let attr = to(row.to);
            let full = row.required | AttrMask::STATE;
            let check = |from, attr: &QpAttr, mask| check(row.class, from, attr, mask);
            assert_eq!(check(row.from, &attr, full), Ok(row.to));
            for flag in row.required.iter() {
                assert_eq!(check(row.from, &attr, full - flag), Err(ModifyError::Missing(flag)));
            }
            let optional = row.optional - AttrMask::CUR_STATE;
            // The table allows an alternate path, but RoCE ports refuse it.
            assert_eq!(check(row.from, &attr, full | (optional - AttrMask::ALT_PATH)), Ok(row.to));
            for flag in (optional & (AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE)).iter() {
                let rearm = QpAttr { path_mig_state: 1, ..attr };
                assert_eq!(check(row.from, &rearm, full | flag), Err(ModifyError::Migration(flag)));
            }
            for flag in (AttrMask::all() - row.required - row.optional - AttrMask::STATE - AttrMask::CUR_STATE).iter() {
                assert_eq!(check(row.from, &attr, full | flag), Err(ModifyError::NotAllowed(flag)));
            }
        }
    }

    #[test]
    fn only_transitions_of_the_table_exist() {
        for (class, from) in [Class::Rc, Class::Uc, Class::Ud, Class::XrcInitiator, Class::XrcTarget, Class::Raw]
            .iter()
            .flat_map(|class| STATES.map(|from| (*class, from)))
        {
            for target in STATES {
                let known = match target {
                    QpState::Reset => true,
                    QpState::Error => from != QpState::Reset,
                    _ => rows().any(|row| row.class == class && row.from == from && row.to == target),
                };
                let verdict = check(class, from, &to(target), AttrMask::STATE);
                let refused = verdict == Err(ModifyError::Transition { from, to: target });
                assert_eq!(refused, !known, "{from:?} -> {target:?}: {verdict:?}");
            }
        }
    }

    #[test]
    fn values_have_ranges() {
        let mask = AttrMask::STATE
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::SQ_PSN
            | AttrMask::MAX_QP_RD_ATOMIC;
        let good = QpAttr { timeout: 31, retry_cnt: 7, rnr_retry: 7, ..to(QpState::Rts) };
        assert_eq!(check(Class::Rc, QpState::Rtr, &good, mask), Ok(QpState::Rts));
        for (flag, bad) in [
            (AttrMask::TIMEOUT, QpAttr { timeout: 32, ..good }),
            (AttrMask::RETRY_CNT, QpAttr { retry_cnt: 8, ..good }),
            (AttrMask::RNR_RETRY, QpAttr { rnr_retry: 8, ..good }),
        ] {
            assert_eq!(check(Class::Rc, QpState::Rtr, &bad, mask), Err(ModifyError::Value(flag)));
        }
    }

    #[test]
    fn reads_and_atomics_have_the_limits_of_the_adapter() {
        let device = DeviceAttributes { max_qp_rd_atom: 8, max_qp_init_rd_atom: 128, ..DeviceAttributes::ideal() };
        let (own, peers) = (AttrMask::MAX_QP_RD_ATOMIC, AttrMask::MAX_DEST_RD_ATOMIC);
        let set = |max_rd_atomic, max_dest_rd_atomic, mask| {
            let attr = QpAttr { max_rd_atomic, max_dest_rd_atomic, ..to(QpState::Sqd) };
            super::check(Class::Rc, QpState::Sqd, &attr, AttrMask::STATE | mask, &device).map(drop)
        };
        assert_eq!(set(128, 8, own | peers), Ok(()));
        assert_eq!(set(129, 8, own | peers), Err(ModifyError::Limit(own, 128)));
        assert_eq!(set(128, 9, own | peers), Err(ModifyError::Limit(peers, 8)));
        assert_eq!([set(129, 8, peers), set(128, 9, own)], [Ok(()); 2], "the mask does not name the attribute");
        let text = ModifyError::Limit(own, 128).to_string();
        assert!(text.contains("MAX_QP_RD_ATOMIC") && text.contains("128"), "{text}");
    }

    #[test]
    fn the_caller_must_know_the_current_state() {
        let mut attr = QpAttr { cur_qp_state: QpState::Sqd, ..to(QpState::Rts) };
        let mask = AttrMask::STATE | AttrMask::CUR_STATE;
        assert_eq!(check(Class::Rc, QpState::Sqd, &attr, mask), Ok(QpState::Rts));
        assert_eq!(check(Class::Rc, QpState::Rts, &attr, mask), Err(ModifyError::CurrentState(QpState::Rts)));
        attr.cur_qp_state = QpState::Init;
        assert_eq!(check(Class::Rc, QpState::Init, &attr, mask), Err(ModifyError::CurrentState(QpState::Init)));
    }
}
