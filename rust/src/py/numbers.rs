//! Arrays of an index that NumPy can read without copying them.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An array of an index. `numpy.asarray` reads it without copying and keeps a reference to this object, which keeps the
/// index alive.
#[pyclass(frozen)]
pub struct Numbers {
    pub index: Arc<crate::Index>,
    pub name: String,
}

#[pymethods]
impl Numbers {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let index = &self.index;
        let (address, len, kind) = match self.name.as_str() {
            "df" => (index.stats.df.as_ptr().addr(), index.len(), "u8"),
            "idf" => (index.idf.as_ptr().addr(), index.len(), "f8"),
            "max_score" => (index.max_score.as_ptr().addr(), index.len(), "f8"),
            "by_rank" => (index.by_rank.as_ptr().addr(), index.len(), "u4"),
            other => return Err(PyValueError::new_err(format!("no array {other}"))),
        };
        let order = if cfg!(target_endian = "big") { '>' } else { '<' };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", format!("{order}{kind}"))?;
        interface.set_item("shape", (len,))?;
        interface.set_item("data", (address, true))?; // true: read-only
        Ok(interface)
    }
}
