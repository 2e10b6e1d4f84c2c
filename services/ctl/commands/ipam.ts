import { type Block } from '@podwire/proto/podwire/ipam/v1/block';
import { BlockServiceService } from '@podwire/proto/podwire/ipam/v1/block';
import { ConfigServiceService, type UpdateConfigRequest } from '@podwire/proto/podwire/ipam/v1/config';
import { PoolServiceService, type Pool, type SplitPoolRequest } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { compareTexts } from '@podwire/shared/words/order';
import { z } from 'zod';

import { dryRunOf } from '../clients/dry-run.js';
import type { Context } from '../clients/services.js';
import { readTexts, writeText } from '../clients/terminal.js';
import { ADDRESS, text, wholeNumber, YES_OR_NO } from '../command-line/forms.js';
import { FORCE, RESOURCE_VERSION, previewReport, YES } from '../command-line/options.js';
import { argument, flag, option, type Input, type Option, type Verb } from '../command-line/verb.js';
import { sentence, type Report, type Section, type Table } from '../output/report.js';
import { count, podOf } from '../output/words.js';
import { COUNT_COLUMNS, countCells } from '../resources/address-counts.js';
import { borrowedOf, listBlocks, ownerCells, utilizationOf } from '../resources/block.js';
import { configFields, readConfig } from '../resources/ipamconfig.js';
import { countsOf, listPools, poolFields } from '../resources/ippool.js';
import { NODE, POOL } from '../resources/reading.js';
import { listFindings } from './audit.js';
import { previewRelease, releaseAddresses, type Release } from './release.js';
import { currentOwner } from './who.js';

const IP = option('--ip', ADDRESS, 'whether this address is in use, and its owner');
const SHOW_BLOCKS = flag('--show-blocks', 'also the blocks');
const SHOW_BORROWED = flag('--show-borrowed', 'the addresses that nodes use in blocks of other nodes');
const SHOW_CONFIGURATION = flag('--show-configuration', 'the settings of allocation');

export const ipamShow: Verb = {
  name: 'ipam show',
  about: 'utilisation of pools, and the blocks and addresses of each node',
  details: 'Exit code 3: the address of --ip is not in use.',
  options: [IP, POOL, NODE],
  flags: [SHOW_BLOCKS, SHOW_BORROWED, SHOW_CONFIGURATION],
  examples: ['ipam show', 'ipam show --ip=10.65.0.7', 'ipam show --show-blocks', 'ipam show --show-borrowed'],
  run: async (input, context) => {
    const address = input.get(IP);
    if (address !== undefined) return currentOwner(address, 1, context);
    if (input.has(SHOW_CONFIGURATION)) return showConfiguration(context);
    return showUtilisation(input, context);
  },
};

async function showConfiguration(context: Context): Promise<Report> {
  const config = await readConfig(context);
  return {
    sections: config ? [configFields(config)] : [],
    data: () => context.json.of(ConfigServiceService.getConfig, { config }),
  };
}

async function showUtilisation(input: Input, { ipam, json }: Context): Promise<Report> {
  const filter = { pool: input.get(POOL) ?? '', node: input.get(NODE) ?? '' };
  const pools = (await listPools(ipam)).filter(({ name }) => filter.pool === '' || name === filter.pool);
  const blocks = await listBlocks(ipam, filter);
  const sections: Section[] = input.has(SHOW_BORROWED)
    ? [borrowedTable(blocks)]
    : [poolTable(pools), ...(input.has(SHOW_BLOCKS) ? [blockTable(blocks)] : []), nodeTable(blocks)];
  return {
    sections,
    data: () => ({
      pools: json.of(PoolServiceService.listPools, { pools, nextPageToken: '' }),
      blocks: json.of(BlockServiceService.listBlocks, { blocks, nextPageToken: '' }),
    }),
  };
}

function poolTable(pools: readonly Pool[]): Table {
  return {
    kind: 'table',
    columns: ['POOL', 'CIDR', { right: 'ADDRESSES' }, ...COUNT_COLUMNS, { right: 'BLOCKS' }],
    rows: pools.map(({ name, cidr, utilization }) => {
      const counts = countsOf(utilization);
      return [name, cidr, count(counts.capacity), ...countCells(counts), String(counts.blocks)];
    }),
    none: 'pools: none',
  };
}

const NO_OWNER = '(no owner)';

function blockTable(blocks: readonly Block[]): Table {
  return {
    kind: 'table',
    columns: ['POOL', 'BLOCK', 'NODE', { right: 'ADDRESSES' }, ...COUNT_COLUMNS],
    rows: blocks.map((block) => {
      const { poolName, cidr, nodeName, capacity } = block;
      const counts = countCells({ capacity, ...utilizationOf(block) });
      return [poolName, cidr, nodeName || NO_OWNER, String(capacity), ...counts];
    }),
    none: 'blocks: none',
  };
}

function borrowedTable(blocks: readonly Block[]): Table {
  return {
    kind: 'table',
    columns: ['ADDRESS', 'BORROWING NODE', 'BLOCK', 'BLOCK OWNER', 'POD', 'HANDLE'],
    rows: blocks.flatMap((block) =>
      borrowedOf(block).map(({ address, attributes, handleId }) => [
        ...[address, attributes.node ?? '', block.cidr, block.nodeName || NO_OWNER],
        ...[podOf(attributes), handleId],
      ]),
    ),
    none: 'borrowed addresses: none',
  };
}

interface NodeUse {
  blocks: number;
  capacity: number;
  allocated: number;
  cooling: number;
  reserved: number;
  available: number;
  leased: number;
  borrowed: number;
}

const NO_USE: NodeUse = {
  ...{ blocks: 0, capacity: 0, allocated: 0, cooling: 0, reserved: 0, available: 0, leased: 0, borrowed: 0 },
};

function nodeTable(blocks: readonly Block[]): Table {
  const uses = new Map<string, NodeUse>();
  for (const block of blocks) {
    const name = block.nodeName || NO_OWNER;
    const use = uses.get(name) ?? { ...NO_USE };
    const { allocated, cooling, reserved, available, leased } = utilizationOf(block);
    use.blocks++;
    use.capacity += block.capacity;
    use.allocated += allocated;
    use.cooling += cooling;
    use.reserved += reserved;
    use.available += available;
    use.leased += leased;
    use.borrowed += borrowedOf(block).length;
    uses.set(name, use);
  }
  const inUse = (use: NodeUse): number => use.allocated - use.cooling;
  const byUse = [...uses].sort(([nameA, a], [nameB, b]) => inUse(b) - inUse(a) || compareTexts(nameA, nameB));
  return {
    kind: 'table',
    columns: ['NODE', { right: 'BLOCKS' }, { right: 'ADDRESSES' }, ...COUNT_COLUMNS, { right: 'LENT ADDRESSES' }],
    rows: byUse.map(([name, use]) => {
      return [name, String(use.blocks), String(use.capacity), ...countCells(use), String(use.borrowed)];
    }),
    none: 'blocks: none',
  };
}

const REPORT_FILE: Option<string> = {
  ...{ name: '--output', short: '-o', form: text('FILE|FORMAT') },
  about: 'file to write a report to, for "ipam release --from-report"; or the format of the output',
};
const SHOW_ALL = flag('--show-all-ips', 'also every address in use');
const SHOW_PROBLEMS = flag('--show-problem-ips', 'findings with addresses; they are always shown');

/** Finding kinds of addresses without a user. */
const LEAK_KINDS = [
  'FINDING_KIND_ALLOCATION_UNUSED',
  'FINDING_KIND_TUNNEL_ALLOCATION_UNUSED',
  'FINDING_KIND_LEASE_OF_GONE_NODE',
];

/** The report of `ipam check`: the audit's findings, and the allocations at that time. */
const REPORT = z.object({
  audit: z.object({
    findings: z.array(
      z.object({ kind: z.string(), objects: z.array(z.object({ type: z.string(), name: z.string() })) }),
    ),
  }),
  allocations: z.array(z.object({ address: z.string(), sequenceNumber: z.string(), handleId: z.string() })),
});

export const ipamCheck: Verb = {
  name: 'ipam check',
  about: 'check the datastore for inconsistencies, as "audit" does',
  details: 'May run at any time; no lock is needed. Exit code 4: there are findings.',
  options: [REPORT_FILE],
  flags: [SHOW_ALL, SHOW_PROBLEMS],
  examples: ['ipam check', 'ipam check --show-problem-ips -o report.json'],
  run: async (input, context) => {
    const file = input.get(REPORT_FILE);
    const json = file === undefined ? context.json : new (await import('../output/data.js')).ContractJson();
    const findings = await listFindings({ kinds: [], includeInformation: false }, { ...context, json });
    if (file === undefined && !input.has(SHOW_ALL)) return findings;
    const blocks = await listBlocks(context.ipam, { pool: '', node: '' });
    const allocations = blocks.flatMap((block) => block.allocations);
    const data = () => ({
      audit: findings.data(),
      allocations: allocations.map(({ address, sequenceNumber, handleId }) => ({
        ...{ address, handleId },
        sequenceNumber: String(sequenceNumber),
      })),
    });
    if (file !== undefined) await writeText(file, `${JSON.stringify(data(), undefined, 2)}\n`);
    const table: Table = {
      kind: 'table',
      columns: ['ADDRESS', 'POD', 'NODE', 'INTERFACE', 'SINCE', { right: 'SEQUENCE' }, 'HANDLE'],
      rows: allocations.map(ownerCells),
      none: 'addresses: none',
    };
    const written = file === undefined ? [] : [sentence(`report written to ${file}`)];
    return { ...findings, sections: [...findings.sections, ...(input.has(SHOW_ALL) ? [table] : []), ...written], data };
  },
};

const FROM_REPORT: Option<string> = {
  ...{ name: '--from-report', form: text('FILE'), repeated: true },
  about: 'release the unused addresses of a report of "ipam check -o FILE"; of several reports, the addresses in all',
};
const RELEASED_IP: Option<string> = { ...IP, about: 'the address to release' };

export const ipamRelease: Verb = {
  name: 'ipam release',
  about: 'release an address, or the unused addresses of a report',
  details:
    'Refused while the node of a pod runs. Addresses of a report are released by their sequence numbers: one that has been\n' +
    'allocated again since is kept. "release address" takes a sequence number.',
  options: [RELEASED_IP, FROM_REPORT],
  flags: [FORCE, YES],
  examples: ['ipam release --ip=10.65.0.7', 'ipam release --from-report=report.json'],
  run: async (input, context) => {
    const address = input.get(RELEASED_IP);
    const reports = input.all(FROM_REPORT);
    if ((address === undefined) === (reports.length === 0))
      throw new Failure('INVALID_REQUEST', 'ipam release: requires --ip or --from-report, and not both');
    if (address !== undefined) return releaseIp(address, input, context);
    const releases = await leaksOf(reports, context);
    const execute = () => releaseAddresses({ releases, force: input.has(FORCE) }, context);
    if (releases.length === 0) return { sections: [sentence('unused addresses: none')], data: () => [] };
    if (input.has(YES)) return execute();
    const table: Table = {
      kind: 'table',
      title: 'addresses that would be released',
      columns: ['ADDRESS', { right: 'SEQUENCE' }, 'HANDLE'],
      rows: releases.map(({ address: ip, sequenceNumber, handleId = '' }) => [ip, String(sequenceNumber), handleId]),
      none: '',
    };
    return previewReport(
      { sections: [table], data: () => releases.map((each) => each.address) },
      input.toCommandLine(),
      execute,
    );
  },
};

function releaseIp(address: string, input: Input, context: Context): Promise<Report> {
  const release = { address, sequenceNumber: undefined, handleId: undefined };
  const force = input.has(FORCE);
  if (input.has(YES)) return releaseAddresses({ releases: [release], force }, context);
  const command = (sequence: string) =>
    `release address ${address} --sequence ${sequence}${force ? ` ${FORCE.name}` : ''}`;
  return previewRelease({ ...release, force }, command, context);
}

/** The unused allocations that every report has. @throws Failure INVALID_REQUEST for a file that is not a report */
async function leaksOf(files: readonly string[], context: Context): Promise<Release[]> {
  const reports: Release[][] = [];
  for (const file of files) {
    const [found] = await readTexts(file, false, context.stdin);
    const parsed = REPORT.safeParse(parseJson(found?.text ?? ''));
    if (!parsed.success)
      throw new Failure('INVALID_REQUEST', `${file}: is not a report; write one with "podwirectl ipam check -o FILE"`);
    const { audit, allocations } = parsed.data;
    const leaks = audit.findings.filter(({ kind }) => LEAK_KINDS.includes(kind)).flatMap(({ objects }) => objects);
    const addresses = new Set(leaks.filter(({ type }) => type === 'address').map(({ name }) => name));
    const leaked = allocations.filter(({ address }) => addresses.has(address));
    reports.push(leaked.map((each) => ({ ...each, sequenceNumber: BigInt(each.sequenceNumber) })));
  }
  const [first = [], ...rest] = reports;
  const isSame = (a: Release, b: Release): boolean => a.address === b.address && a.sequenceNumber === b.sequenceNumber;
  return first.filter((leak) => rest.every((report) => report.some((each) => isSame(each, leak))));
}

const STRICT: Option<boolean> = {
  ...{ name: '--strictaffinity', form: YES_OR_NO },
  about: 'whether nodes allocate from their own blocks only',
};
const MAX_BLOCKS: Option<number> = {
  ...{ name: '--max-blocks-per-host', form: wholeNumber('NUMBER', { min: 0, max: 1_000_000 }) },
  about: 'maximum number of blocks per node and family, 0 for no limit; above 0 requires strict affinity',
};
const COOLDOWN: Option<number> = {
  ...{ name: '--ip-cooldown-seconds', form: wholeNumber('NUMBER', { min: 0, max: 1200 }) },
  about: 'time before a released address may be allocated again',
};
const AUTO: Option<boolean> = {
  ...{ name: '--auto-allocate-blocks', form: YES_OR_NO },
  about: 'whether nodes claim blocks on demand; false requires strict affinity',
};

export const ipamConfigure: Verb = {
  name: 'ipam configure',
  about: 'change settings of the cluster’s allocation; settings not given stay unchanged',
  details: 'Applies from the next allocation; existing blocks and addresses stay.',
  options: [STRICT, MAX_BLOCKS, COOLDOWN, AUTO, RESOURCE_VERSION],
  examples: ['ipam configure --strictaffinity=true --max-blocks-per-host=4', 'ipam configure --ip-cooldown-seconds=30'],
  run: async (input, { ipam, json }) => {
    const changes = {
      strictAffinity: input.get(STRICT),
      autoAllocateBlocks: input.get(AUTO),
      maxBlocksPerNode: input.get(MAX_BLOCKS),
      cooldownSeconds: input.get(COOLDOWN),
    };
    if (Object.values(changes).every((value) => value === undefined))
      throw new Failure('INVALID_REQUEST', 'no setting to change; see "podwirectl ipam configure --help"');
    const request: UpdateConfigRequest = { ...changes, resourceVersion: input.get(RESOURCE_VERSION) ?? '' };
    const answer = await ipam.call(ConfigServiceService.updateConfig, request);
    return {
      sections: answer.config ? [configFields(answer.config)] : [],
      data: () => json.of(ConfigServiceService.updateConfig, answer),
    };
  },
};

const NUMBER = argument(wholeNumber('NUMBER', { min: 2, max: 64 }), 'number of new pools: a power of two', 'required');
const CIDR = option('--cidr', text('CIDR'), 'the pool, by its range');
const NAME = option('--name', text('NAME', 'ippools'), 'the pool, by its name');

export const ipamSplit: Verb = {
  name: 'ipam split',
  about: 'replace a pool with several of equal size; addresses and blocks are kept',
  positionals: [NUMBER],
  options: [CIDR, NAME, RESOURCE_VERSION],
  flags: [YES],
  examples: ['ipam split 4 --name=default-ipv4-ippool', 'ipam split 2 --cidr=10.65.0.0/16'],
  run: async (input, context) => {
    const [name, cidr, number] = [input.get(NAME), input.get(CIDR), input.at(NUMBER)];
    if ((name === undefined) === (cidr === undefined))
      throw new Failure('INVALID_REQUEST', 'ipam split: requires --name or --cidr, and not both');
    const { ipam, json, clock } = context;
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const pool: SplitPoolRequest['pool'] =
      name === undefined ? { $case: 'cidr', value: cidr ?? '' } : { $case: 'name', value: name };
    const request = { pool, number, resourceVersion };
    const execute = async () => {
      const { parts, answer } = await split(request, context);
      return { sections: [parts], data: () => json.of(PoolServiceService.splitPool, answer) };
    };
    if (input.has(YES)) return execute();
    const pools = await listPools(ipam);
    const found = pools.find((each) => (name === undefined ? each.cidr === cidr : each.name === name));
    if (!found)
      throw new Failure('POOL_NOT_FOUND', `pool ${name ?? cidr} not found; "podwirectl get ippools" lists them`);
    const sections = [
      sentence(`This pool would be replaced with ${number} pools. Requests that name it would be refused:`),
      poolFields(found, clock.nowMs()),
      (await split(request, dryRunOf(context))).parts,
    ];
    const data = () => json.of(PoolServiceService.getPool, { pool: found });
    return previewReport({ sections, data }, input.toCommandLine(), execute);
  },
};

async function split(request: SplitPoolRequest, { ipam }: Context) {
  const answer = await ipam.call(PoolServiceService.splitPool, request);
  const parts: Table = {
    kind: 'table',
    columns: ['NAME', 'CIDR'],
    rows: answer.pools.map((pool) => [pool.name, pool.cidr]),
    none: 'pools: none',
  };
  return { parts, answer };
}
