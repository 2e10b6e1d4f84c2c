import type { Form } from '../command-line/forms.js';
import { BLOCK_AFFINITY } from './affinity.js';
import { ADDRESS, BLOCK } from './block.js';
import { HANDLE } from './handle.js';
import { IPAM_CONFIG } from './ipamconfig.js';
import { IP_POOL } from './ippool.js';
import { IP_RESERVATION } from './ipreservation.js';
import { NODE } from './node.js';
import { REQUEST_POLICY } from './policy.js';
import type { Resource } from './resource.js';
import { REVOKED_CERTIFICATE } from './revokedcertificate.js';
import { WORKLOAD_ENDPOINT } from './workloadendpoint.js';

/** Every kind of resource. */
export const RESOURCES: readonly Resource[] = [
  ...[IP_POOL, IP_RESERVATION, IPAM_CONFIG, NODE, WORKLOAD_ENDPOINT],
  ...[BLOCK, ADDRESS, BLOCK_AFFINITY, HANDLE, REQUEST_POLICY, REVOKED_CERTIFICATE],
];

const PLURALS = RESOURCES.map(({ names: [, plural] }) => plural).join(', ');

/** A kind, by any of its names, in upper or lower case. */
export const KIND: Form<Resource> = {
  placeholder: 'KIND',
  words: RESOURCES.flatMap(({ names }) => names),
  read: (input) => {
    const name = input.toLowerCase();
    const value = RESOURCES.find(({ names, kind }) => names.includes(name) || kind.toLowerCase() === name);
    return value ? { ok: true, value } : { ok: false, fault: `is not one of ${PLURALS}` };
  },
};

/** The kinds, for the help. */
export const KINDS_TEXT = RESOURCES.map(({ names: [, plural, ...aliases], about }) => {
  return `  ${`${plural} (${aliases.join(', ')})`.padEnd(58)} ${about}`;
}).join('\n');

/** The kind of a manifest; undefined for an unknown one. */
export function resourceOf(manifest: { readonly kind: string; readonly apiVersion: string }): Resource | undefined {
  return RESOURCES.find(({ kind, apiVersion }) => kind === manifest.kind && apiVersion === manifest.apiVersion);
}
