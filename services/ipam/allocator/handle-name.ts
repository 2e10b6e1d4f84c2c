/**
 * Names of handles. Calico's: `<network>.<container ID>`, and in old releases `<namespace>.<pod>` or the bare container ID
 * (libcalico-go/lib/ipam). An old migration of Calico's wrote a carriage return, and what followed it, into some.
 */

const MAX_HANDLE_BYTES = 512;

/** A handle's name without what the migration appended. */
export function cutHandle(id: string): string {
  const end = id.indexOf('\r');
  return end < 0 ? id : id.slice(0, end);
}

/** The names under which a handle may be stored. */
export function storedHandleNames(id: string): readonly string[] {
  return [id, `${id}\r`, `${id}\r\n`];
}

/** Why a text names no handle, or undefined when it may. It is a part of a key, so it holds no slash. */
export function handleFault(id: string): string | undefined {
  if (id === '') return 'is empty';
  if (id.length > MAX_HANDLE_BYTES) return `is longer than ${MAX_HANDLE_BYTES} bytes`;
  return /^[\x21-\x2e\x30-\x7e]+$/.test(id) ? undefined : 'holds "/", white space, or what is not printable ASCII';
}
