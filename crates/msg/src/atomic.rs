//! What atomics compute: operators over datatypes, one element at a time.
//!
//! Codes are those of `enum fi_op` and `enum fi_datatype`, which are also on the wire.

/// What happens with the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    /// It is not returned.
    Plain,
    /// It is returned.
    Fetch,
    /// It is returned, and decides whether the new value is stored.
    Compare,
}

impl AtomicKind {
    /// Its number on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this number on the wire.
    pub fn from_code(code: u8) -> Option<AtomicKind> {
        [AtomicKind::Plain, AtomicKind::Fetch, AtomicKind::Compare].into_iter().find(|kind| kind.code() == code)
    }
}

/// Declares an enumeration: its variants have the numbers of a C enumeration.
macro_rules! coded {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // The names are those of the C enumeration.
        pub enum $name { $($variant = $code,)* }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// Its number.
            pub fn code(self) -> u8 {
                self as u8
            }

            /// The one with this number.
            pub fn from_code(code: u8) -> Option<$name> {
                match code {
                    $($code => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

coded! {
    /// `enum fi_op`.
    Operator {
        Min = 0, Max = 1, Sum = 2, Product = 3, LogicalOr = 4, LogicalAnd = 5, BitOr = 6, BitAnd = 7, LogicalXor = 8,
        BitXor = 9, Read = 10, Write = 11, Swap = 12, SwapNotEqual = 13, SwapLessEqual = 14, SwapLess = 15,
        SwapGreaterEqual = 16, SwapGreater = 17, MaskedSwap = 18,
    }
}

coded! {
    /// `enum fi_datatype`, without complex numbers, `long double` and 128 bits.
    Datatype {
        I8 = 0, U8 = 1, I16 = 2, U16 = 3, I32 = 4, U32 = 5, I64 = 6, U64 = 7, F32 = 8, F64 = 9,
    }
}

impl Datatype {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Datatype::I8 | Datatype::U8 => 1,
            Datatype::I16 | Datatype::U16 => 2,
            Datatype::I32 | Datatype::U32 | Datatype::F32 => 4,
            Datatype::I64 | Datatype::U64 | Datatype::F64 => 8,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Datatype::F32 | Datatype::F64)
    }
}

/// Whether there is such an atomic (fi_atomic(3)): comparisons have operators of their own, a read returns the value,
/// and floating point numbers have no bits.
pub fn is_valid(kind: AtomicKind, operator: Operator, datatype: Datatype) -> bool {
    let compares = operator.code() >= Operator::Swap.code();
    let on_bits = matches!(operator, Operator::BitOr | Operator::BitAnd | Operator::BitXor | Operator::MaskedSwap);
    let kinds = match kind {
        AtomicKind::Plain => !compares && operator != Operator::Read,
        AtomicKind::Fetch => !compares,
        AtomicKind::Compare => compares,
    };
    kinds && !(on_bits && datatype.is_float())
}

/// The value that `operator` makes of `old`, in bits: elements are in the low bytes.
pub fn result(operator: Operator, datatype: Datatype, old: u64, operand: u64, compare: u64) -> u64 {
    match datatype {
        Datatype::I8 => integer!(i8, operator, old, operand, compare) as u8 as u64,
        Datatype::U8 => integer!(u8, operator, old, operand, compare) as u64,
        Datatype::I16 => integer!(i16, operator, old, operand, compare) as u16 as u64,
        Datatype::U16 => integer!(u16, operator, old, operand, compare) as u64,
        Datatype::I32 => integer!(i32, operator, old, operand, compare) as u32 as u64,
        Datatype::U32 => integer!(u32, operator, old, operand, compare) as u64,
        Datatype::I64 => integer!(i64, operator, old, operand, compare) as u64,
        Datatype::U64 => integer!(u64, operator, old, operand, compare),
        Datatype::F32 => {
            let float = |bits| f64::from(f32::from_bits(bits as u32));
            let (old, operand, compare) = (float(old), float(operand), float(compare));
            u64::from((real(operator, old, operand, compare) as f32).to_bits())
        }
        Datatype::F64 => {
            real(operator, f64::from_bits(old), f64::from_bits(operand), f64::from_bits(compare)).to_bits()
        }
    }
}

/// A result over integers, which wrap around.
macro_rules! integer {
    ($type:ty, $operator:expr, $old:expr, $operand:expr, $compare:expr) => {{
        let (old, operand, compare) = ($old as $type, $operand as $type, $compare as $type);
        match $operator {
            Operator::Min => old.min(operand),
            Operator::Max => old.max(operand),
            Operator::Sum => old.wrapping_add(operand),
            Operator::Product => old.wrapping_mul(operand),
            Operator::LogicalOr => <$type>::from(old != 0 || operand != 0),
            Operator::LogicalAnd => <$type>::from(old != 0 && operand != 0),
            Operator::LogicalXor => <$type>::from((old != 0) != (operand != 0)),
            Operator::BitOr => old | operand,
            Operator::BitAnd => old & operand,
            Operator::BitXor => old ^ operand,
            Operator::MaskedSwap => (operand & compare) | (old & !compare),
            _ => select($operator, old, operand, compare),
        }
    }};
}
use integer;

/// A result over floating point numbers. An f32 has the same result when it is computed as f64 and rounded once.
fn real(operator: Operator, old: f64, operand: f64, compare: f64) -> f64 {
    let truth = |value: bool| f64::from(u8::from(value));
    match operator {
        Operator::Min => old.min(operand),
        Operator::Max => old.max(operand),
        Operator::Sum => old + operand,
        Operator::Product => old * operand,
        Operator::LogicalOr => truth(old != 0.0 || operand != 0.0),
        Operator::LogicalAnd => truth(old != 0.0 && operand != 0.0),
        Operator::LogicalXor => truth((old != 0.0) != (operand != 0.0)),
        _ => select(operator, old, operand, compare),
    }
}

/// Operators that store the operand or leave the value. A comparison says how `compare` stands to the value before.
fn select<T: PartialOrd + Copy>(operator: Operator, old: T, operand: T, compare: T) -> T {
    let stores = match operator {
        Operator::Write => true,
        Operator::Swap => compare == old,
        Operator::SwapNotEqual => compare != old,
        Operator::SwapLessEqual => compare <= old,
        Operator::SwapLess => compare < old,
        Operator::SwapGreaterEqual => compare >= old,
        Operator::SwapGreater => compare > old,
        _ => false,
    };
    if stores { operand } else { old }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_in_their_own_width() {
        let bits = |value: i64, datatype: Datatype| value as u64 & (u64::MAX >> (64 - 8 * datatype.size()));
        for (datatype, max, min) in [
            (Datatype::I8, i64::from(i8::MAX), i64::from(i8::MIN)),
            (Datatype::I16, i64::from(i16::MAX), i64::from(i16::MIN)),
            (Datatype::I32, i64::from(i32::MAX), i64::from(i32::MIN)),
            (Datatype::I64, i64::MAX, i64::MIN),
        ] {
            let of = |operator, a, b| result(operator, datatype, bits(a, datatype), bits(b, datatype), 0);
            assert_eq!(of(Operator::Sum, max, 1), bits(min, datatype));
            assert_eq!(of(Operator::Min, -1, 1), bits(-1, datatype));
            assert_eq!(of(Operator::LogicalXor, -1, 1), 0);
        }
        assert_eq!(result(Operator::Max, Datatype::U8, 0xff, 1, 0), 0xff);
        assert_eq!(result(Operator::MaskedSwap, Datatype::U16, 0xabcd, 0x1234, 0x00ff), 0xab34);
    }

    #[test]
    fn comparisons_stand_as_in_fi_atomic() {
        let stores = |operator, compare: f64| {
            let bits = f64::to_bits;
            result(operator, Datatype::F64, bits(5.0), bits(9.0), bits(compare)) == bits(9.0)
        };
        let table = [
            (Operator::Swap, [false, true, false]),
            (Operator::SwapNotEqual, [true, false, true]),
            (Operator::SwapLessEqual, [true, true, false]),
            (Operator::SwapLess, [true, false, false]),
            (Operator::SwapGreaterEqual, [false, true, true]),
            (Operator::SwapGreater, [false, false, true]),
        ];
        for (operator, expected) in table {
            assert_eq!([4.0, 5.0, 6.0].map(|compare| stores(operator, compare)), expected, "{operator:?}");
        }
        let sum = result(Operator::Sum, Datatype::F32, 1.5f32.to_bits().into(), 2.25f32.to_bits().into(), 0);
        assert_eq!(sum, u64::from(3.75f32.to_bits()));
    }

    #[test]
    fn codes_come_back() {
        Operator::ALL.iter().for_each(|&op| assert_eq!(Operator::from_code(op.code()), Some(op)));
        Datatype::ALL.iter().for_each(|&datatype| assert_eq!(Datatype::from_code(datatype.code()), Some(datatype)));
        assert_eq!(Operator::from_code(19), None);
        assert!(!is_valid(AtomicKind::Plain, Operator::Read, Datatype::I32));
        assert!(!is_valid(AtomicKind::Fetch, Operator::BitOr, Datatype::F32));
        assert!(is_valid(AtomicKind::Compare, Operator::Swap, Datatype::F64));
    }
}
