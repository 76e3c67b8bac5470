//! The `WEIR_*` environment variables: an empty variable counts as unset, and an error names the wrong variable.

use clap::Command;
use clap::error::{ContextKind, ContextValue};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Removes empty `WEIR_*` variables from the environment. CI systems pass a missing value as an empty variable.
/// The caller must call it before the process has a second thread.
pub fn drop_empty() {
    for name in empty(std::env::vars_os()) {
        // SAFETY: there is no other thread that could read the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
}

fn empty(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<OsString> {
    let ours = |name: &OsString| name.as_bytes().starts_with(b"WEIR_");
    variables.filter(|(name, value)| ours(name) && value.is_empty()).map(|(name, _)| name).collect()
}

/// Replaces the option in a clap error by the variable that the wrong value comes from; clap itself names the option.
pub fn name_variable(mut error: clap::Error, mut command: Command) -> clap::Error {
    command.build();
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let (option, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    let arguments = command.get_subcommands().flat_map(Command::get_arguments);
    let variable = arguments
        .filter(|argument| argument.to_string() == option)
        .filter_map(|argument| argument.get_env())
        .find(|variable| std::env::var_os(variable).is_some_and(|set| set == *value));
    if let Some(variable) = variable {
        let name = variable.to_string_lossy().into_owned();
        error.insert(ContextKind::InvalidArg, ContextValue::String(name));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_weir_variables_are_dropped() {
        let all = [("WEIR_CAPTURE", ""), ("WEIR_LOG", "warn"), ("PATH", ""), ("WEIR_ICRC", "")];
        let found = empty(all.into_iter().map(|(name, value)| (name.into(), value.into())));
        assert_eq!(found, ["WEIR_CAPTURE", "WEIR_ICRC"]);
    }
}
