/** Largest request, in bytes. The largest of the contract, an AttachPod with many routes, is far below. */
export const MAX_REQUEST_BYTES = 1024 * 1024;
