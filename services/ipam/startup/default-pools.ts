import { readFileSync } from 'node:fs';

import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, prefixesOverlap } from '@podwire/shared/net/prefix';
import { z } from 'zod';

import type { Config } from '../config.js';
import { checkPool, type PoolSpec } from '../pools/rules.js';

const ENCAPSULATIONS = {
  none: {},
  vxlan: { vxlanMode: 'Always' },
  'vxlan-cross-subnet': { vxlanMode: 'CrossSubnet' },
  ipip: { ipipMode: 'Always' },
  'ipip-cross-subnet': { ipipMode: 'CrossSubnet' },
} as const;

const poolsSchema = z.array(
  z.strictObject({
    name: z.string(),
    cidr: z.string(),
    blockSize: z.int().min(0).max(128).default(0),
    encapsulation: z
      .enum(['none', 'vxlan', 'vxlan-cross-subnet', 'ipip', 'ipip-cross-subnet'])
      .default('none')
      .transform((name) => ENCAPSULATIONS[name]),
    natOutgoing: z.boolean().default(false),
    disableBgpExport: z.boolean().default(false),
    nodeSelector: z.string().default(''),
  }),
);

const VARIABLE = 'PODWIRE_IPAM_DEFAULT_POOLS_FILE';

/**
 * The pools that a first start makes: the pool of the settings, or the pools of the configured file.
 * @throws Failure INVALID_SETTINGS when the file cannot be read, or its pools cannot exist together
 */
export function readDefaultPools(config: Pick<Config, 'defaultPool' | 'defaultPoolsFile'>): readonly PoolSpec[] {
  const { defaultPool, defaultPoolsFile: path } = config;
  if (path === '') return defaultPool === undefined ? [] : [defaultPool];
  const pools = parsePools(path).map(({ blockSize, encapsulation, ...rest }): PoolSpec => {
    const checked = checkPool({ ...rest, ...encapsulation, blockSizeBits: blockSize, disabled: false });
    if (checked.ok) return checked.spec;
    const faults = checked.faults.map(({ field, reason }) => `${field} ${reason}`);
    return refuse(path, `pool "${rest.name}": ${faults.join('; ')}`);
  });
  for (const [index, pool] of pools.entries()) {
    const other = pools.slice(0, index).find((earlier) => contradicts(earlier, pool));
    if (other !== undefined) {
      refuse(path, `pool "${pool.name}" has the name or range of pool "${other.name}" (${formatPrefix(other.prefix)})`);
    }
  }
  return pools;
}

function contradicts(a: PoolSpec, b: PoolSpec): boolean {
  return a.name === b.name || prefixesOverlap(a.prefix, b.prefix);
}

function parsePools(path: string): z.infer<typeof poolsSchema> {
  let value: unknown;
  try {
    value = JSON.parse(readFileSync(path, 'utf8'));
  } catch (error) {
    return refuse(path, `cannot be read as JSON: ${String(error)}`);
  }
  const parsed = poolsSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  return refuse(path, parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`).join('; '));
}

function refuse(path: string, reason: string): never {
  throw new Failure('INVALID_SETTINGS', `${path}: ${reason}; correct the file that ${VARIABLE} names`);
}
