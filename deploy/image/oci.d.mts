type Archive = Readonly<Record<'file' | 'work' | 'name', string>> & { readonly epochSeconds: number };
interface Packing {
  readonly file: string;
  readonly folder: string;
  readonly epochSeconds: number;
}

export function packFolder(packing: Packing): string;
export function writeArchive(archive: Archive & { readonly images: unknown; readonly config: unknown }): string;
