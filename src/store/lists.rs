//! Lists of keys and values, turned into one call.

use std::collections::HashMap;

use kv_core::machine::Value;
use kv_core::{AsTensor, Error, Key, Tensor};

/// Several arrays of one key, summed in order.
pub(super) fn sum<V: AsTensor>(values: impl IntoIterator<Item = V>) -> Result<Value, Error> {
    let mut values = values.into_iter();
    let Some(first) = values.next() else { return Err(Error::ListMismatch { keys: 1, values: 0 }) };
    let mut sum = Value::from(first.as_tensor());
    for value in values {
        add(&mut sum, &Value::from(value.as_tensor()))?;
    }
    Ok(sum)
}

/// Keys and their values for `init`.
pub(super) fn tensors<K: Into<Key>, V: AsTensor>(
    keys: impl IntoIterator<Item = K>,
    values: impl IntoIterator<Item = V>,
) -> Result<Vec<(Key, Tensor)>, Error> {
    pair(keys, values, |value| value.as_tensor().to_tensor())
}

/// Keys and their values for a push. Several values of one key are the arrays of that key: their sum is pushed once.
pub(super) fn values<K: Into<Key>, V: AsTensor>(
    keys: impl IntoIterator<Item = K>,
    values: impl IntoIterator<Item = V>,
) -> Result<Vec<(Key, Value)>, Error> {
    let pairs = pair(keys, values, |value| Value::from(value.as_tensor()))?;
    let mut places: HashMap<Key, usize> = HashMap::with_capacity(pairs.len());
    let mut merged: Vec<(Key, Value)> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        match places.get(&key) {
            Some(&place) => add(&mut merged[place].1, &value)?,
            None => {
                places.insert(key.clone(), merged.len());
                merged.push((key, value));
            }
        }
    }
    Ok(merged)
}

fn add(sum: &mut Value, value: &Value) -> Result<(), Error> {
    if sum.dtype != value.dtype {
        return Err(Error::DTypeMismatch { key: None, expected: sum.dtype, found: value.dtype });
    }
    let shapes_differ = sum.shape.is_some() && value.shape.is_some() && sum.shape != value.shape;
    if shapes_differ || sum.buffer.len() != value.buffer.len() {
        let what = "an array to be summed with the others of its key".to_owned();
        let (expected, found) = (sum.buffer.len() as u64, value.buffer.len() as u64);
        return Err(Error::LengthMismatch { what, expected, found });
    }
    kv_core::sum::add_assign(sum.dtype, sum.buffer.bytes_mut(), value.buffer.bytes());
    Ok(())
}

fn pair<K: Into<Key>, V, T>(
    keys: impl IntoIterator<Item = K>,
    values: impl IntoIterator<Item = V>,
    convert: impl Fn(V) -> T,
) -> Result<Vec<(Key, T)>, Error> {
    let keys: Vec<Key> = keys.into_iter().map(Into::into).collect();
    let values: Vec<T> = values.into_iter().map(convert).collect();
    if keys.len() != values.len() {
        return Err(Error::ListMismatch { keys: keys.len(), values: values.len() });
    }
    Ok(keys.into_iter().zip(values).collect())
}
