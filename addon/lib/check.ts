/** Checks of whole arguments of the API's methods. */
import { ArgumentError } from './errors.js';
import { GROUP_NUMBERS, type MonitorGroup, type MonitorOptions } from './monitor.js';
import type { NativeDumpFilter, NativeStep } from './native.js';
import type { Step, SysctlKey, SysctlSetting } from './requests.js';
import {
  checkArray,
  checkFlag,
  checkInteger,
  checkPrefix,
  checkRecord,
  checkSysctlKey,
  checkText,
  INDEX,
  optional,
  TABLE,
  UINT32,
  UINT8,
} from './scalars.js';
import type { NativeOf } from './link-steps.js';
import { toNativeStep, toSysctlWrite } from './steps.js';

const BATCH_MAX = 100_000;
const STEPS_MAX = 1000;
const TIMEOUT_DEFAULT_MS = 5000;
const TIMEOUT_RANGE_MS = { min: 1, max: 600_000 };

function checkList(path: string, list: readonly unknown[], max = STEPS_MAX): void {
  checkArray(path, list);
  if (list.length > max) throw new ArgumentError(path, `must have at most ${max} elements`);
}

/** Sysctl writes are steps of a sequence only, because they are not netlink messages. */
export function checkBatch(requests: readonly Step[], nativeOf: NativeOf): NativeStep[] {
  checkList('requests', requests, BATCH_MAX);
  return requests.map((request, position) => {
    const path = `requests[${position}]`;
    const step = toNativeStep(request, path, nativeOf);
    if (step.within)
      throw new ArgumentError(`${path}.within`, 'must not be given; use sequence for several namespaces');
    if (step.op === 'sysctl.write')
      throw new ArgumentError(`${path}.type`, 'must be netlink; use sequence for sysctls');
    return step;
  });
}

export function checkSequence(steps: readonly Step[], nativeOf: NativeOf): NativeStep[] {
  checkList('steps', steps);
  return steps.map((step, position) => toNativeStep(step, `steps[${position}]`, nativeOf));
}

export function checkSysctlKeys(keys: readonly SysctlKey[]): string[] {
  checkList('keys', keys);
  return keys.map((key, position) => checkSysctlKey(`keys[${position}]`, key));
}

export function checkSysctlSettings(settings: readonly SysctlSetting[]): NativeStep[] {
  checkList('settings', settings);
  return settings.map((setting, position) => {
    const path = `settings[${position}]`;
    checkRecord(path, setting);
    return toSysctlWrite(setting, { path, base: { optional: true, within: null } });
  });
}

export function checkTimeout(options: { readonly timeoutMs?: number }): number {
  checkRecord('options', options);
  return checkInteger('options.timeoutMs', options.timeoutMs ?? TIMEOUT_DEFAULT_MS, TIMEOUT_RANGE_MS);
}

interface DumpFilter {
  readonly maxCount?: number;
  readonly timeoutMs?: number;
  readonly family?: number;
  readonly index?: number;
  readonly table?: number;
  readonly protocol?: number;
  readonly proxy?: boolean;
  readonly destination?: string;
}

function checkFamily(path: string, value: unknown): 4 | 6 {
  if (value !== 4 && value !== 6) throw new ArgumentError(path, 'must be 4 or 6');
  return value;
}

export function checkDumpFilter(filter: DumpFilter): NativeDumpFilter {
  checkRecord('filter', filter);
  const destination = optional(filter.destination, (cidr) => checkPrefix('filter.destination', cidr));
  return {
    family: optional(filter.family, (family) => checkFamily('filter.family', family)) ?? 0,
    index: optional(filter.index, (index) => checkInteger('filter.index', index, INDEX)) ?? 0,
    table: optional(filter.table, (table) => checkInteger('filter.table', table, TABLE)) ?? 0,
    protocol:
      optional(filter.protocol, (protocol) => checkInteger('filter.protocol', protocol, { ...UINT8, min: 1 })) ?? 0,
    proxy: checkFlag('filter.proxy', filter.proxy),
    destination: destination?.address ?? null,
    prefixLengthBits: destination?.prefixLengthBits ?? 0,
    maxCount: optional(filter.maxCount, (count) => checkInteger('filter.maxCount', count, { ...UINT32, min: 1 })) ?? 0,
    timeoutMs:
      optional(filter.timeoutMs, (timeoutMs) => checkInteger('filter.timeoutMs', timeoutMs, TIMEOUT_RANGE_MS)) ?? 0,
  };
}

function isMonitorGroup(value: unknown): value is MonitorGroup {
  return typeof value === 'string' && Object.hasOwn(GROUP_NUMBERS, value);
}

/** Replaces the names of groups by the kernel's numbers. */
export function checkMonitorOptions(options: MonitorOptions): { readonly groups: number[]; readonly gatherMs: number } {
  return { groups: checkMonitorGroups(options.groups), gatherMs: checkGatherMs(options.gatherMs) };
}

export function checkGatherMs(gatherMs: unknown): number {
  return optional(gatherMs, (value) => checkInteger('options.gatherMs', value, GATHER_MS)) ?? 0;
}

const GATHER_MS = { min: 0, max: 1000 };

function checkMonitorGroups(groups: readonly unknown[]): number[] {
  checkArray('options.groups', groups);
  if (groups.length === 0) throw new ArgumentError('options.groups', 'must have at least one element');
  return groups.flatMap((group, position) => {
    if (isMonitorGroup(group)) return GROUP_NUMBERS[group];
    const names = Object.keys(GROUP_NUMBERS).join(', ');
    throw new ArgumentError(`options.groups[${position}]`, `must be one of ${names}`);
  });
}

export function checkNamespacePath(path: unknown): string | null {
  return optional(path, (value) => {
    if (value === '') throw new ArgumentError('path', 'must not be empty');
    return checkText('path', value);
  });
}

export function checkProcDirectory(directory: unknown): string {
  const checked = checkText('directory', directory);
  if (!checked.startsWith('/')) throw new ArgumentError('directory', 'must be an absolute path');
  return checked;
}
