/** Built-in modules for `directions.mjs`: of a zone without I/O, and of one that may use all of Node. */
export const PURE = { builtins: [] };
export const NODE = { builtins: ['*'] };
