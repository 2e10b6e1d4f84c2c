import { ASSIGNMENT_WORDS, ENCAPSULATION_WORDS, USE_WORDS } from '@podwire/shared/requests/pool-words';
import { z } from 'zod';

import { OBJECT } from './manifest.js';

/** Shapes of the specs of manifests. */

/** Words of YAML 1.1, which Calico's tools take. */
const TRUE_WORDS = ['yes', 'Yes', 'YES', 'on', 'On', 'ON'] as const;
const FALSE_WORDS = ['no', 'No', 'NO', 'off', 'Off', 'OFF'] as const;

/** A field that is true or false. */
const BOOLEAN = z.union(
  [z.boolean(), z.enum(TRUE_WORDS).transform(() => true), z.enum(FALSE_WORDS).transform(() => false)],
  { error: 'must be true or false' },
);

const MODE = z.enum(ENCAPSULATION_WORDS).default('Never');

/** Calico's IPPoolSpec (projectcalico/api, pkg/apis/projectcalico/v3/ippool.go). */
export const IP_POOL_SPEC = z.strictObject({
  cidr: z.string(),
  blockSize: z.int().min(0).max(128).default(0),
  vxlanMode: MODE,
  ipipMode: MODE,
  natOutgoing: BOOLEAN.default(false),
  disabled: BOOLEAN.default(false),
  disableBGPExport: BOOLEAN.default(false),
  nodeSelector: z.string().default(''),
  namespaceSelector: z.string().default(''),
  allowedUses: z.array(z.enum(USE_WORDS)).default([]),
  assignmentMode: z.enum(ASSIGNMENT_WORDS).default('Automatic'),
});

/** Calico's IPReservationSpec. */
export const IP_RESERVATION_SPEC = z.strictObject({ reservedCIDRs: z.array(z.string()) });

/** Calico's IPAMConfigurationSpec. */
export const IPAM_CONFIG_SPEC = z.strictObject({
  strictAffinity: BOOLEAN.default(false),
  autoAllocateBlocks: BOOLEAN.default(true),
  maxBlocksPerHost: z.int().min(0).max(1_000_000).default(0),
  ipCooldownSeconds: z.int().min(0).max(1200).default(0),
});

/** Calico's BlockAffinitySpec. State and deleted are written by the service. */
export const BLOCK_AFFINITY_SPEC = z.strictObject({
  cidr: z.string(),
  node: z.string(),
  type: z.literal('host').default('host'),
  state: z.string().optional(),
  deleted: z.union([z.boolean(), z.string()]).optional(),
});

const TEXTS = z.array(z.string());

/** A missing rule does not restrict its kind; an empty one allows nothing. */
export const REQUEST_POLICY_SPEC = z.strictObject({
  namespaces: TEXTS.default([]),
  namespaceSelector: z.string().default(''),
  pools: z
    .strictObject({ names: TEXTS.default([]), cidrs: TEXTS.default([]), selector: z.string().default('') })
    .optional(),
  addresses: TEXTS.optional(),
  addressesWithoutIPAM: TEXTS.optional(),
  sourcePrefixes: TEXTS.optional(),
  macAddresses: TEXTS.optional(),
  families: z.array(z.enum(['IPv4', 'IPv6'])).optional(),
});

/** The node itself writes its spec. */
export const NODE_SPEC = OBJECT;
