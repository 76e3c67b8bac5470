//! The environment of programs that are measured.

use std::process::Command;

/// Removes this process's WEIR_* variables, which would change the measurement, but not those that the command sets itself.
pub fn clean(mut command: Command) -> Command {
    let set: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"WEIR_")) {
        if name != "WEIR_LOG" && !set.contains(&name) {
            command.env_remove(name);
        }
    }
    command
}
