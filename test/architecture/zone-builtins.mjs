/** Of `directions.mjs`: a zone without I/O, and one that may use all of Node. */
export const PURE = { builtins: [] };
export const NODE = { builtins: ['*'] };
