/** Largest request, in bytes. The largest request of the contract, an AttachPod with many routes, is far smaller. */
export const MAX_REQUEST_BYTES = 1024 * 1024;
