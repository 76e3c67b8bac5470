//! The functions that this library defines, by name: what a lookup with a library's handle is given instead.

use crate::{control, memory, next};
use std::ffi::{CStr, c_void};

/// A function of this library.
pub struct Export {
    name: &'static CStr,
    pub function: *mut c_void,
    /// Whether the function that the program has found is the one that this library calls.
    pub agrees: fn(*mut c_void) -> bool,
}

/// The function with this name.
pub fn find(name: &CStr) -> Option<Export> {
    if !name.to_bytes().starts_with(b"ibv_") {
        return None;
    }
    macro_rules! exports {
        ($($name:ident in $module:ident, $next:ident;)*) => {
            [$(Export {
                name: name_of(concat!(stringify!($name), "\0")),
                function: $module::$name as *mut c_void,
                agrees: |found| found != $module::$name as *mut c_void && next::$next.agrees(found),
            }),*]
        };
    }
    let all = exports! {
        ibv_open_device in control, OPEN_DEVICE;
        ibv_import_device in control, IMPORT_DEVICE;
        ibv_close_device in control, CLOSE_DEVICE;
        ibv_alloc_pd in control, ALLOC_PD;
        ibv_create_cq in control, CREATE_CQ;
        ibv_resize_cq in control, RESIZE_CQ;
        ibv_destroy_cq in control, DESTROY_CQ;
        ibv_create_qp in control, CREATE_QP;
        ibv_modify_qp in control, MODIFY_QP;
        ibv_query_qp in control, QUERY_QP;
        ibv_destroy_qp in control, DESTROY_QP;
        ibv_dealloc_pd in control, DEALLOC_PD;
        ibv_dereg_mr in control, DEREG_MR;
        ibv_reg_mr in memory, REG_MR;
        ibv_reg_mr_iova in memory, REG_MR_IOVA;
        ibv_reg_mr_iova2 in memory, REG_MR_IOVA2;
        ibv_reg_mr_ex in memory, REG_MR_EX;
    };
    all.into_iter().find(|export| export.name == name)
}

const fn name_of(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with NUL"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_of_this_library_are_found() {
        assert!(find(c"ibv_open_device").is_some());
        assert!(find(c"ibv_reg_mr_iova2").is_some());
        assert!(find(c"ibv_query_port").is_none());
        assert!(find(c"malloc").is_none());
    }
}
