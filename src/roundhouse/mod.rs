//! roundhouse
