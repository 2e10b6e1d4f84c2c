import { ROUTE_PROTOCOL } from '../wiring/network.js';

/** Of the rules: behind those that workloads number themselves, before `main` (32766) and what `ip rule` numbers (from 32765 down). */
export const RULE_PRIORITY = 30_087;

/** Numbers of the tables: {@link ROUTE_PROTOCOL} in the highest of four bytes, 1459617792 to 1476395007. */
const TABLES_FROM = ROUTE_PROTOCOL * 2 ** 24;
const HASH_BITS = 24;

/**
 * Routing table of an interface of a pod: derived from its name there, so that what is its own is known without asking anybody. The hash is
 * FNV-1a, whose low bits tell names apart that differ in their last characters.
 */
export function tableOf(interfaceName: string): number {
  const hash = [...Buffer.from(interfaceName)].reduce((sum, byte) => Math.imul(sum ^ byte, FNV_PRIME), FNV_OFFSET);
  return TABLES_FROM + ((hash >>> 0) & (2 ** HASH_BITS - 1));
}

/** Whether a rule is one of Podwire's for an interface, whichever that is: nobody else has its protocol, priority and table. */
export function isSourceRule({ table, priority, protocol }: SourceRule): boolean {
  return protocol === ROUTE_PROTOCOL && priority === RULE_PRIORITY && table >>> HASH_BITS === ROUTE_PROTOCOL;
}

interface SourceRule {
  readonly table: number;
  readonly priority: number;
  readonly protocol: number;
}

const FNV_PRIME = 0x01_00_01_93;
const FNV_OFFSET = 0x81_1c_9d_c5;
