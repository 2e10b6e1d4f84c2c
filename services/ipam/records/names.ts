const MAX_SUBDOMAIN_BYTES = 253;
const MAX_LABEL_BYTES = 63;

const LABEL = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?$/;

/**
 * Why a text is not an RFC 1123 subdomain as in Kubernetes (names of nodes, pods and pools); undefined for a valid one.
 */
export function subdomainFault(text: string): string | undefined {
  if (text === '') return 'is empty';
  if (text.length > MAX_SUBDOMAIN_BYTES) return `is longer than ${MAX_SUBDOMAIN_BYTES} bytes`;
  return text.split('.').every((label) => LABEL.test(label))
    ? undefined
    : 'is no RFC 1123 subdomain: lower-case letters, digits, "-" and ".", with a letter or a digit at both ends of each part';
}

/** Why a text is not an RFC 1123 label as in Kubernetes (names of namespaces); undefined for a valid one. */
export function labelFault(text: string): string | undefined {
  if (text === '') return 'is empty';
  if (text.length > MAX_LABEL_BYTES) return `is longer than ${MAX_LABEL_BYTES} bytes`;
  return LABEL.test(text)
    ? undefined
    : 'is no RFC 1123 label: lower-case letters, digits and "-", with a letter or a digit at both ends';
}

const LABEL_TEXT = /^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$/;

/** Why a text is not a Kubernetes label key (`rack`, `topology.kubernetes.io/zone`); undefined for a valid one. */
export function labelKeyFault(text: string): string | undefined {
  const slash = text.lastIndexOf('/');
  const prefixFault = slash < 0 ? undefined : subdomainFault(text.slice(0, slash));
  if (prefixFault !== undefined) return `has a prefix before "/" that ${prefixFault}`;
  return labelTextFault(text.slice(slash + 1));
}

/** Why a text is not a Kubernetes label value; undefined for a valid one, such as the empty text. */
export function labelValueFault(text: string): string | undefined {
  return text === '' ? undefined : labelTextFault(text);
}

function labelTextFault(text: string): string | undefined {
  if (text === '') return 'has an empty name';
  if (text.length > MAX_LABEL_BYTES) return `is longer than ${MAX_LABEL_BYTES} bytes`;
  return LABEL_TEXT.test(text)
    ? undefined
    : 'has other characters than letters, digits, "-", "_" and ".", or does not begin and end with a letter or a digit';
}

/**
 * Names of handles. Calico's: `<network>.<container ID>`, and in old releases `<namespace>.<pod>` or the bare container
 * ID (libcalico-go/lib/ipam). An old migration of Calico wrote a carriage return and the text after it into some.
 */

const MAX_HANDLE_BYTES = 512;

/** A handle's name without the text that the migration appended. */
export function cutHandle(id: string): string {
  const end = id.indexOf('\r');
  return end < 0 ? id : id.slice(0, end);
}

/** The possible stored names of a handle. */
export function storedHandleNames(id: string): readonly string[] {
  return [id, `${id}\r`, `${id}\r\n`];
}

/** Why a text is not a valid handle; undefined for a valid one. A handle is part of a key, so it contains no slash. */
export function handleFault(id: string): string | undefined {
  if (id === '') return 'is empty';
  if (id.length > MAX_HANDLE_BYTES) return `is longer than ${MAX_HANDLE_BYTES} bytes`;
  return /^[\x21-\x2e\x30-\x7e]+$/.test(id) ? undefined : 'must be printable ASCII without spaces and "/"';
}

/** The label that Kubernetes sets on every namespace: its name. It cannot be changed. */
export const NAME_LABEL = 'kubernetes.io/metadata.name';
