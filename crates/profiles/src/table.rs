//! A profile file as a list of sections, keys and values.

use crate::Error;
use serde::Serialize;
use toml::{Table, Value};

/// A value of a profile with its explanation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explained {
    /// `section.key`.
    pub key: String,
    pub value: Value,
    /// Meaning of the key.
    pub means: String,
    /// Source of the value.
    pub source: String,
    /// Remark on the value.
    pub note: String,
}

/// The contents of a file: a profile, or the differences from another profile.
#[derive(Debug)]
pub(crate) struct Contents {
    pub about: Option<String>,
    pub base: Option<String>,
    pub values: Vec<Explained>,
}

/// Parses a file.
pub(crate) fn parse(origin: &str, text: &str) -> Result<Contents, Error> {
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| Error::Syntax { origin: origin.into(), reason: error.to_string() })?;
    let mut contents = Contents { about: None, base: None, values: Vec::new() };
    for (section, value) in table {
        let wrong = |key: &str, got: &Value, wanted: &str| Error::Value {
            origin: origin.into(),
            key: key.into(),
            got: got.to_string(),
            wanted: wanted.into(),
        };
        match (section.as_str(), value) {
            ("about", Value::String(text)) => contents.about = Some(text),
            ("base", Value::String(name)) => contents.base = Some(name),
            ("about" | "base", other) => return Err(wrong(&section, &other, "a string")),
            (_, Value::Table(keys)) => {
                for (key, value) in keys {
                    let key = format!("{section}.{key}");
                    let explained = explained(origin, key, value).map_err(|(key, got)| {
                        wrong(&key, &got, "a value, or { value = …, source = \"…\", note = \"…\" }")
                    })?;
                    contents.values.push(explained);
                }
            }
            (_, other) => return Err(wrong(&section, &other, "a section")),
        }
    }
    Ok(contents)
}

/// Reads a bare value, or a value with its source. The error is the key and the invalid value.
fn explained(origin: &str, key: String, value: Value) -> Result<Explained, (String, Value)> {
    let Value::Table(mut parts) = value else {
        return Ok(Explained { key, value, means: String::new(), source: origin.into(), note: String::new() });
    };
    let whole = Value::Table(parts.clone());
    let mut text = |name: &str| match parts.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(()),
    };
    let (means, source, note) = (text("means"), text("source"), text("note"));
    match (parts.remove("value"), means, source, note) {
        (Some(value), Ok(means), Ok(source), Ok(note)) if parts.is_empty() => Ok(Explained {
            key,
            value,
            means: means.unwrap_or_default(),
            source: source.unwrap_or_else(|| origin.into()),
            note: note.unwrap_or_default(),
        }),
        _ => Err((key, whole)),
    }
}
