// Where the time of one ADD went, from its spans.

const IPAM_CALL = 'podwire.ipam.v1.AddressService/Allocate';
const DATAPLANE_CALL = 'podwire.dataplane.v1.PodService/AttachPod';
const COMMIT = 'podwire.store.commit';
const KERNEL = 'podwire.kernel.batch';
const ROOT = 'CNI ADD';

/** The spans that an ADD's trace has when all of it has arrived: calls have one of the client and one of the server. */
export const ADD_SPANS = { [ROOT]: 1, [IPAM_CALL]: 2, [DATAPLANE_CALL]: 2 };

/**
 * Splits the time from exec to exit of one ADD into parts that add up to it. Each call counts, with what it takes on the
 * wire, for the service that is called, less what that service spent in the datastore or the kernel.
 * @returns milliseconds: {shim, plugin, ipam, datastore, dataplane, kernel}
 */
export function whereTimeWent(spans, elapsedMs) {
  const total = (name) => spans.filter((span) => span.name === name).reduce((sum, span) => sum + span.durationMs, 0);
  /** Client and server of a call have a span of the same name; the client's is the outer one. */
  const call = (name) => Math.max(0, ...spans.filter((span) => span.name === name).map((span) => span.durationMs));
  const root = total(ROOT);
  const datastore = total(COMMIT);
  const kernel = total(KERNEL);
  return {
    shim: elapsedMs - root,
    plugin: root - call(IPAM_CALL) - call(DATAPLANE_CALL),
    ipam: call(IPAM_CALL) - datastore,
    datastore,
    dataplane: call(DATAPLANE_CALL) - kernel,
    kernel,
  };
}
