/** Names as Kubernetes allows them (RFC 1123). IPAM checks them again; here a fault is named by the variable that brought it. */

const LABEL = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;
const SUBDOMAIN = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/;
const MAX_SUBDOMAIN_BYTES = 253;

/** Whether a text can be the name of a namespace. */
export function isLabel(text: string): boolean {
  return LABEL.test(text);
}

/** Whether a text can be the name of a pod or a node. */
export function isSubdomain(text: string): boolean {
  return text.length <= MAX_SUBDOMAIN_BYTES && SUBDOMAIN.test(text);
}
