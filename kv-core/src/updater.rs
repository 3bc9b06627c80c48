//! How a gradient changes a value: the trait, what it is given, and the registry that turns a spec from the wire
//! into an updater.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::dtype::{DType, Element};
use crate::error::Error;
use crate::wire::{KeyMeta, UpdaterSpec};

/// Changes a stored value by a gradient (the sum of a round, or one asynchronous push).
///
/// An updater holds settings only; what it remembers of a value lies in [`State`], kept beside that value by the
/// server. It is called for one chunk of a value at a time, so it must work element by element.
pub trait Updater: Send + Sync {
    /// Applies `gradient` to `weight`. Both have the key's element type and the same number of elements.
    ///
    /// # Errors
    /// A text that says what is wrong. The caller has made sure that an error leaves the stored value as it was only
    /// if the updater does: check before writing.
    fn update(
        &self,
        step: &Step<'_>,
        weight: SliceMut<'_>,
        state: &mut State,
        gradient: Slice<'_>,
    ) -> Result<(), String>;
}

/// Where and when an update happens.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// What is known of the key.
    pub meta: &'a KeyMeta,
    /// Number of the chunk within the value.
    pub chunk: u32,
    /// How many updates this value has had, this one included: the first is 1.
    pub count: u64,
}

/// What an updater remembers of one chunk: buffers as long as the chunk, zero at first.
#[derive(Clone, Debug, Default)]
pub struct State {
    slots: Vec<Buffer>,
}

impl State {
    /// Slot `index` with room for `len` elements; zeros when it was not used before (or had another length).
    pub fn slot<T: Element>(&mut self, index: usize, len: usize) -> &mut [T] {
        let bytes = len * size_of::<T>();
        if self.slots.len() <= index {
            self.slots.resize(index + 1, Buffer::default());
        }
        let slot = &mut self.slots[index];
        if slot.len() != bytes {
            *slot = Buffer::zeroed(bytes);
        }
        slot.elements_mut()
    }

    /// The slots in use.
    #[must_use]
    pub fn slots(&self) -> &[Buffer] {
        &self.slots
    }
}

/// Elements to read, of a type known at run time.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    dtype: DType,
    bytes: &'a [u8],
}

/// Elements to change, of a type known at run time.
#[derive(Debug)]
pub struct SliceMut<'a> {
    dtype: DType,
    bytes: &'a mut [u8],
}

impl<'a> Slice<'a> {
    /// Over bytes that are aligned and a whole number of elements.
    pub(crate) fn new(dtype: DType, bytes: &'a [u8]) -> Self {
        Self { dtype, bytes }
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the element type.
    pub fn elements<T: Element>(self) -> Result<&'a [T], Error> {
        check::<T>(self.dtype)?;
        Ok(bytemuck::cast_slice(self.bytes))
    }
}

impl<'a> SliceMut<'a> {
    /// Over bytes that are aligned and a whole number of elements.
    pub(crate) fn new(dtype: DType, bytes: &'a mut [u8]) -> Self {
        Self { dtype, bytes }
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the element type.
    pub fn elements<T: Element>(self) -> Result<&'a mut [T], Error> {
        check::<T>(self.dtype)?;
        Ok(bytemuck::cast_slice_mut(self.bytes))
    }
}

fn check<T: Element>(dtype: DType) -> Result<(), Error> {
    if T::DTYPE == dtype { Ok(()) } else { Err(Error::DTypeMismatch { key: None, expected: dtype, found: T::DTYPE }) }
}

/// Replaces the value by the gradient: what a store does without an optimizer (MXNet's rule).
#[derive(Clone, Copy, Debug)]
pub struct Assign;

impl Updater for Assign {
    fn update(
        &self,
        _step: &Step<'_>,
        weight: SliceMut<'_>,
        _state: &mut State,
        gradient: Slice<'_>,
    ) -> Result<(), String> {
        weight.bytes.copy_from_slice(gradient.bytes);
        Ok(())
    }
}

/// Adds the gradient to the value (Multiverso's default rule).
#[derive(Clone, Copy, Debug)]
pub struct Accumulate;

impl Accumulate {
    /// Its spec on the wire.
    #[must_use]
    pub fn spec() -> UpdaterSpec {
        UpdaterSpec { name: "accumulate".to_owned(), settings: String::new() }
    }
}

impl Updater for Accumulate {
    fn update(
        &self,
        _step: &Step<'_>,
        weight: SliceMut<'_>,
        _state: &mut State,
        gradient: Slice<'_>,
    ) -> Result<(), String> {
        crate::sum::add_assign(weight.dtype, weight.bytes, gradient.bytes);
        Ok(())
    }
}

/// Makes an updater from its settings; the error is a text that names the setting and what was expected.
pub type UpdaterDecoder = fn(settings: &str) -> Result<Arc<dyn Updater>, String>;

/// The updaters a server knows, by name. Settings come over the wire; code does not.
#[derive(Clone)]
pub struct UpdaterRegistry {
    decoders: BTreeMap<String, UpdaterDecoder>,
}

impl Default for UpdaterRegistry {
    /// `assign` and `accumulate`.
    fn default() -> Self {
        let mut registry = Self { decoders: BTreeMap::new() };
        registry.register("assign", |settings| no_settings(settings, Assign));
        registry.register("accumulate", |settings| no_settings(settings, Accumulate));
        registry
    }
}

fn no_settings(settings: &str, updater: impl Updater + 'static) -> Result<Arc<dyn Updater>, String> {
    if settings.is_empty() { Ok(Arc::new(updater)) } else { Err("it takes no settings".to_owned()) }
}

impl UpdaterRegistry {
    /// Adds an updater, replacing one of the same name.
    pub fn register(&mut self, name: &str, decoder: UpdaterDecoder) {
        self.decoders.insert(name.to_owned(), decoder);
    }

    /// Makes the updater of a spec.
    ///
    /// # Errors
    /// A text: an unknown name lists the known ones; else what the updater says of its settings.
    pub fn decode(&self, spec: &UpdaterSpec) -> Result<Arc<dyn Updater>, String> {
        match self.decoders.get(&spec.name) {
            Some(decoder) => decoder(&spec.settings).map_err(|reason| format!("{}: {reason}", spec.name)),
            None => {
                let known: Vec<_> = self.decoders.keys().map(String::as_str).collect();
                Err(format!("'{}' is not known here; known are {}", spec.name.escape_debug(), known.join(", ")))
            }
        }
    }
}
