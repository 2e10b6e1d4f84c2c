export const CHART: string;
export const RENDERED: string;
export const UNINSTALL: string;
export const NAMESPACE: string;
export const RENDER: readonly string[];
export function chartChecksum(): string;
export function header(): string;
export function checksumOf(text: string): string | undefined;
