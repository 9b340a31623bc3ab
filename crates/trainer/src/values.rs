//! Values of options that are written as text: sizes, devices, slots, orders of execution, JSON objects.

use megatrain_base::parse_bytes;
use serde::{Deserialize, Deserializer, Serialize};
use std::str::FromStr;

macro_rules! text_type {
    ($name:ident) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                #[serde(untagged)]
                enum Plain {
                    Number(u64),
                    Text(String),
                }
                let text = match Plain::deserialize(d)? {
                    Plain::Number(n) => n.to_string(),
                    Plain::Text(text) => text,
                };
                text.parse().map_err(serde::de::Error::custom)
            }
        }
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.to_string())
            }
        }
    };
}

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes(pub u64);
text_type!(Bytes);

impl FromStr for Bytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_bytes(text).map(Bytes)
    }
}

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Where to compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// The best there is.
    Auto,
    /// The processor.
    Cpu,
    /// A CUDA device.
    Cuda(u32),
}
text_type!(Device);

impl FromStr for Device {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(Device::Cuda)
                .ok_or_else(|| format!("`{text}` is no device; write auto, cpu or cuda:N")),
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// Block slots on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slots {
    /// A slot for every block.
    All,
    /// This many.
    Count(usize),
}
text_type!(Slots);

impl FromStr for Slots {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("all", _) => Ok(Slots::All),
            (_, Ok(n)) if n >= 2 => Ok(Slots::Count(n)),
            _ => Err(format!("`{text}` is no number of slots; write a number from 2 on, or all")),
        }
    }
}

impl std::fmt::Display for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Slots::All => f.write_str("all"),
            Slots::Count(n) => write!(f, "{n}"),
        }
    }
}

/// How the CPU executor orders commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutorMode {
    /// One thread a lane.
    Threads,
    /// Program order.
    Inline,
    /// A random legal order.
    Shuffle(u64),
}
text_type!(ExecutorMode);

impl FromStr for ExecutorMode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "threads" => Ok(ExecutorMode::Threads),
            "inline" => Ok(ExecutorMode::Inline),
            _ => text
                .strip_prefix("shuffle:")
                .and_then(|n| n.parse().ok())
                .map(ExecutorMode::Shuffle)
                .ok_or_else(|| format!("`{text}` is no executor mode; write threads, inline or shuffle:SEED")),
        }
    }
}

impl std::fmt::Display for ExecutorMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ExecutorMode::Threads => f.write_str("threads"),
            ExecutorMode::Inline => f.write_str("inline"),
            ExecutorMode::Shuffle(seed) => write!(f, "shuffle:{seed}"),
        }
    }
}

/// A JSON object: on the command line as text, in a file as text or as a table.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct JsonObject(pub serde_json::Map<String, serde_json::Value>);

impl FromStr for JsonObject {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let example = "write for example '{\"enable_thinking\": false}'";
        match serde_json::from_str(text) {
            Ok(serde_json::Value::Object(map)) => Ok(JsonObject(map)),
            Ok(_) => Err(format!("`{text}` is JSON, but no object; {example}")),
            Err(e) => Err(format!("`{text}` is no JSON ({e}); {example}")),
        }
    }
}

impl<'de> Deserialize<'de> for JsonObject {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Table(serde_json::Map<String, serde_json::Value>),
            Text(String),
        }
        match Given::deserialize(d)? {
            Given::Table(map) => Ok(JsonObject(map)),
            Given::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}
