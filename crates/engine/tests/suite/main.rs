//! The engine from outside: on the real model, where it has been fetched, and on small ones that a test makes.

mod real;
mod support;
mod tiny;
