#!/bin/sh
# Runs as root in the `seal` stage. Takes away what an agent could use to change its identity, its
# mounts or the image: package managers, set-id programs, mount and namespace tools, perl (a second
# interpreter nobody needs, which the package tools had brought). tests/docker/test_image.py holds it
# to that.
set -eu

# The package list first: the database it is read from goes below.
mkdir -p /usr/share/beige
dpkg-query -W -f '${Package}\t${Version}\t${Architecture}\n' >/usr/share/beige/packages.tsv

remove_programs() {
    for name in "$@"; do
        rm -f "/usr/bin/$name" "/usr/sbin/$name" "/usr/local/bin/$name" "/usr/local/sbin/$name" \
            "/bin/$name" "/sbin/$name"
    done
}

# Identity, mounts, namespaces, system administration.
remove_programs su sudo sg newgrp login passwd chsh chfn chage gpasswd expiry newuidmap newgidmap \
    mount umount unshare nsenter setpriv runuser pivot_root switch_root chroot \
    useradd usermod userdel groupadd groupmod groupdel groupmems newusers adduser addgroup deluser \
    delgroup vipw vigr chpasswd chgpasswd pwck grpck pwconv pwunconv grpconv grpunconv \
    losetup mkfs fsck mkswap swapon swapoff swaplabel fdisk sfdisk cfdisk blkid wipefs zramctl fsfreeze \
    fstrim blkdiscard blockdev pivot_root hwclock sulogin agetty getty ctrlaltdel rtcwake readprofile \
    unix_chkpwd unix_update capsh setcap getcap start-stop-daemon sysctl shadowconfig cron dmesg \
    installkernel ldattach mkhomedir_helper faillock nologin chcpu isosize tunelp chmem
rm -f /usr/sbin/mkfs.* /usr/sbin/fsck.* /usr/sbin/pam* /usr/sbin/swap*

# Package managers and their data.
remove_programs update-alternatives update-rc.d invoke-rc.d service pip pip3 ucf ucfr ucfq
rm -rf /usr/bin/apt* /usr/bin/dpkg* /usr/sbin/dpkg* /usr/bin/debconf* /usr/lib/apt /usr/lib/dpkg \
    /usr/libexec/dpkg /usr/share/dpkg /usr/share/debconf /usr/share/perl5/Deb* /var/lib/apt \
    /var/lib/dpkg /var/cache/apt /var/cache/debconf /var/lib/pam /etc/apt /etc/dpkg

# perl, and the scripts that need it.
rm -rf /usr/bin/perl* /usr/lib/*/perl* /usr/lib/*/libperl.so* /usr/share/perl* /usr/bin/cpan* \
    /usr/bin/pod* /usr/bin/deb-systemd-* /usr/sbin/update-* /usr/sbin/add-shell /usr/sbin/remove-shell
remove_programs corelist prove h2ph h2xs xsubpp ptar ptardiff ptargrep shasum splain enc2xs encguess \
    instmodsh json_pp libnetcfg perlbug perlthanks piconv pl2pm streamzip zipdetails

# Documentation, logs, and the start-up files of a system that never boots.
rm -rf /usr/share/doc /usr/share/man /usr/share/info /usr/share/locale /usr/share/lintian \
    /usr/share/bash-completion /usr/share/zsh /usr/share/bug /usr/share/doc-base /var/log/* /var/cache/* /var/lib/systemd \
    /usr/lib/systemd /etc/systemd /etc/cron* /etc/init.d /etc/rc?.d /var/backups /var/mail /var/spool/mail

find / -xdev -type f -perm /6000 -exec chmod a-s {} +
find / -xdev -type d -perm /2000 -exec chmod g-s {} +
# /tmp and the like are mounted over; nothing in the image itself is anybody's to write.
find / -xdev -type d -perm -0002 ! -path /tmp -exec chmod o-w {} +
# Symbolic links that now lead nowhere (alternatives of what was removed).
find /usr /etc -xdev -xtype l -delete
