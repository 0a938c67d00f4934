//! Values that a program passes to its handlers.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::sync::Arc;

/// One value of each type.
#[derive(Clone, Default)]
pub(super) struct Data(Arc<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Data {
    pub(super) fn insert<D: Send + Sync + 'static>(&mut self, value: D) {
        Arc::make_mut(&mut self.0).insert(TypeId::of::<D>(), Arc::new(value));
    }

    pub(super) fn of<D: Send + Sync + 'static>(&self) -> &D {
        let value = self.0.get(&TypeId::of::<D>());
        let value = value.and_then(|value| value.downcast_ref());
        value.unwrap_or_else(|| {
            panic!(
                "the worker has no data of the type {}; set it with Worker::data",
                type_name::<D>()
            )
        })
    }
}
