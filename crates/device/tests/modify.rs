//! What `Qp::modify` refuses because of the port: path MTUs that the port does not carry, and path migration.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{create, open, to_self};
use std::process::Command;
use std::sync::Arc;
use weir_device::{Context, Errno, Qp};
use weir_transport::{Access, AttrMask, Mtu, QpAttr, QpState, Service};

const INVALID: Result<(), Errno> = Err(Errno(libc::EINVAL));

/// A QP of RC in INIT.
fn initialised(context: &Arc<Context>) -> Arc<Qp> {
    let cq = context.create_cq(8, None, 0).unwrap();
    let qp = context.alloc_pd().unwrap().create_qp(&create(Service::Rc), &cq, &cq).unwrap();
    let attr = QpAttr { qp_state: QpState::Init, access_flags: Access::REMOTE_WRITE, ..QpAttr::default() };
    let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    qp.modify(&attr, init).unwrap();
    qp
}

/// Moves the QP to RTR, with attributes `attr` and the additional mask `more`.
fn to_rtr(context: &Context, qp: &Qp, attr: QpAttr, more: AttrMask) -> Result<(), Errno> {
    let attr = QpAttr { qp_state: QpState::Rtr, ah_attr: to_self(context), dest_qp_num: qp.num(), ..attr };
    let rtr = AttrMask::STATE
        | AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    qp.modify(&attr, rtr | more)
}

fn ip(command: &str) {
    let status = Command::new("ip").args(command.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {command}");
}

#[test]
#[ignore = "needs root"]
fn a_path_mtu_above_that_of_the_interface_is_invalid() {
    // A network namespace of this thread and of the threads that it starts.
    let inside = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("root may");
        ip("link set lo up");
        ip("link set lo mtu 1500");
        let context = open();
        assert_eq!(context.port().active_mtu, Mtu::M1024);
        let qp = initialised(&context);
        let with =
            |qp: &Qp, path_mtu| to_rtr(&context, qp, QpAttr { path_mtu, ..QpAttr::default() }, AttrMask::empty());
        assert_eq!(with(&qp, Mtu::M4096), INVALID);
        assert_eq!(with(&qp, Mtu::M2048), INVALID);
        assert_eq!((qp.query().qp_state, with(&qp, Mtu::M1024)), (QpState::Init, Ok(())));
        // The current MTU of the interface counts, whether the interface is up or not.
        let [before, after] = [(); 2].map(|()| initialised(&context));
        ip("link set lo mtu 9000");
        assert_eq!(with(&before, Mtu::M4096), Ok(()));
        ip("link set lo mtu 1000");
        assert_eq!(with(&after, Mtu::M1024), INVALID);
        assert_eq!(with(&after, Mtu::M512), Ok(()));
    };
    std::thread::spawn(inside).join().unwrap();
}

#[test]
fn an_alternate_path_is_invalid_and_nothing_can_be_armed() {
    let context = open();
    let qp = initialised(&context);
    let alternate = QpAttr { alt_ah_attr: to_self(&context), alt_port_num: 1, alt_timeout: 14, ..QpAttr::default() };
    assert_eq!(to_rtr(&context, &qp, alternate, AttrMask::ALT_PATH), INVALID);
    assert_eq!(qp.query().qp_state, QpState::Init);
    assert_eq!(to_rtr(&context, &qp, QpAttr::default(), AttrMask::empty()), Ok(()));
    let rts = AttrMask::STATE
        | AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::SQ_PSN
        | AttrMask::MAX_QP_RD_ATOMIC;
    let attr = QpAttr { qp_state: QpState::Rts, ..alternate };
    assert_eq!(qp.modify(&attr, rts | AttrMask::ALT_PATH), INVALID);
    for state in [1, 2] {
        let armed = QpAttr { path_mig_state: state, ..attr };
        assert_eq!(qp.modify(&armed, rts | AttrMask::PATH_MIG_STATE), INVALID);
    }
    // A QP without an alternate path is in the state MIGRATED; setting that state is allowed.
    assert_eq!(qp.modify(&attr, rts | AttrMask::PATH_MIG_STATE), Ok(()));
    assert_eq!((qp.query().path_mig_state, qp.query().alt_timeout), (0, 0));
}
