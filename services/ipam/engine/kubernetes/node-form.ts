import {
  formatJson,
  isArray,
  isObject,
  objectIn,
  parseJson,
  type Json,
  type JsonObject,
} from '../../records/json/json.js';

/**
 * Nodes: Kubernetes' own Node objects, of which Calico's fields are annotations
 * (libcalico-go/lib/backend/k8s/resources/node.go).
 */

/** Fields of Calico's Node in the spec, or in its `bgp`, by the annotation that has them. */
const FIELDS: readonly { readonly annotation: string; readonly field: string; readonly isBgp: boolean }[] = [
  { annotation: 'projectcalico.org/IPv4Address', field: 'ipv4Address', isBgp: true },
  { annotation: 'projectcalico.org/IPv6Address', field: 'ipv6Address', isBgp: true },
  { annotation: 'projectcalico.org/ASNumber', field: 'asNumber', isBgp: true },
  { annotation: 'projectcalico.org/RouteReflectorClusterID', field: 'routeReflectorClusterID', isBgp: true },
  { annotation: 'projectcalico.org/IPv4IPIPTunnelAddr', field: 'ipv4IPIPTunnelAddr', isBgp: true },
  { annotation: 'projectcalico.org/IPv4VXLANTunnelAddr', field: 'ipv4VXLANTunnelAddr', isBgp: false },
  { annotation: 'projectcalico.org/IPv6VXLANTunnelAddr', field: 'ipv6VXLANTunnelAddr', isBgp: false },
  { annotation: 'projectcalico.org/VXLANTunnelMACAddr', field: 'vxlanTunnelMACAddr', isBgp: false },
  { annotation: 'projectcalico.org/VXLANTunnelMACAddrV6', field: 'vxlanTunnelMACAddrV6', isBgp: false },
];

const INTERFACES = 'projectcalico.org/Interfaces';

/** Calico's own labels beside Kubernetes' ones, as JSON. */
const LABELS = 'projectcalico.org/labels';

/** Podwire's annotations, which its records have on each datastore. */
const OWN_PREFIX = 'podwire.dev/';

/** When podwire-ipam began to delete the node's record. Kubernetes' deletion time is the Node object's. */
const DELETION_TIME = 'podwire.dev/deletion-time';

/** The record of a node, in etcd's form. */
export function nodeRecord(object: JsonObject): JsonObject {
  const metadata = objectIn(object, 'metadata');
  const annotations = objectIn(metadata, 'annotations');
  const bgp: Record<string, Json> = {};
  const spec: Record<string, Json> = {};
  for (const { annotation, field, isBgp } of FIELDS) {
    const value = annotations[annotation];
    if (value !== undefined && value !== '') (isBgp ? bgp : spec)[field] = value;
  }
  const interfaces = jsonIn(annotations, INTERFACES);
  if (isArray(interfaces)) spec.interfaces = interfaces;
  const deletionTimestamp = annotations[DELETION_TIME];
  const own = Object.entries(annotations).filter(([name]) => name.startsWith(OWN_PREFIX) && name !== DELETION_TIME);
  const calicoLabels = jsonIn(annotations, LABELS);
  const labels = { ...(isObject(calicoLabels) ? calicoLabels : {}), ...objectIn(metadata, 'labels') };
  return {
    kind: 'Node',
    apiVersion: 'projectcalico.org/v3',
    metadata: {
      name: metadata.name ?? '',
      uid: metadata.uid ?? '',
      creationTimestamp: metadata.creationTimestamp ?? null,
      ...(deletionTimestamp === undefined ? {} : { deletionTimestamp }),
      ...(Object.keys(labels).length === 0 ? {} : { labels }),
      ...(own.length === 0 ? {} : { annotations: Object.fromEntries(own) }),
    },
    spec: { ...spec, ...(Object.keys(bgp).length === 0 ? {} : { bgp }) },
  };
}

/** The merge patch of a node (RFC 7396). @param record - undefined to remove all that is podwire-ipam's */
export function nodePatch(record: JsonObject | undefined, base: JsonObject): JsonObject {
  const { resourceVersion = null, uid = null } = objectIn(base, 'metadata');
  return { metadata: { resourceVersion, uid, annotations: nodeAnnotations(record ?? {}, base) } };
}

/** Annotations that change; null for annotations that go. */
function nodeAnnotations(record: JsonObject, base: JsonObject): JsonObject {
  const current = objectIn(objectIn(base, 'metadata'), 'annotations');
  const [metadata, spec] = [objectIn(record, 'metadata'), objectIn(record, 'spec')];
  const bgp = objectIn(spec, 'bgp');
  const wanted: Record<string, Json> = { ...objectIn(metadata, 'annotations') };
  for (const { annotation, field, isBgp } of FIELDS) {
    const value = (isBgp ? bgp : spec)[field];
    if (typeof value === 'string' || typeof value === 'number') wanted[annotation] = String(value);
  }
  if (isArray(spec.interfaces)) wanted[INTERFACES] = formatJson(spec.interfaces);
  if (typeof metadata.deletionTimestamp === 'string') wanted[DELETION_TIME] = metadata.deletionTimestamp;
  const clusterLabels = objectIn(objectIn(base, 'metadata'), 'labels');
  const labels = Object.entries(objectIn(metadata, 'labels')).filter(([name, value]) => clusterLabels[name] !== value);
  if (labels.length > 0) wanted[LABELS] = formatJson(Object.fromEntries(labels));
  const isManaged = (name: string): boolean =>
    name.startsWith(OWN_PREFIX) ||
    [INTERFACES, LABELS].includes(name) ||
    FIELDS.some((each) => each.annotation === name);
  const gone = Object.keys(current).filter((name) => isManaged(name) && wanted[name] === undefined);
  const changed = Object.entries(wanted).filter(([name, value]) => current[name] !== value);
  return { ...Object.fromEntries(gone.map((name) => [name, null])), ...Object.fromEntries(changed) };
}

function jsonIn(annotations: JsonObject, name: string): Json | undefined {
  const text = annotations[name];
  if (typeof text !== 'string') return undefined;
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}
